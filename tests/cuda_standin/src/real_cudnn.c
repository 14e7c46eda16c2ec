/* cuDNN knows its engines and their workspaces without a GPU when it is given a card's properties
 * (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "deviceless ahead-of-time compilation", since 9.8). */
#include "real_cudnn.h"
#include "cards.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEVICE = 38, DEVICE_JSON = 2702, TYPE_CHAR = 24 };

static real_cudnn_t real;

static void give_up(const char *why) {
    fprintf(stderr, "CUDA_STANDIN_REAL_CUDNN: %s\n", why);
    abort();
}

static void load(void) {
    const char *path = getenv("CUDA_STANDIN_REAL_CUDNN");
    if (!path || !*path) return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) give_up(dlerror());
    real.destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
    real.finalize = dlsym(library, "cudnnBackendFinalize");
    real.set = dlsym(library, "cudnnBackendSetAttribute");
    real.get = dlsym(library, "cudnnBackendGetAttribute");
    real.create = dlsym(library, "cudnnBackendCreateDescriptor");
    if (!real.create || !real.get) give_up("it is no cuDNN");
    const card_t *one = card();
    char text[2048];
    int length = snprintf(text, sizeof text,
        "{\"deviceName\":\"%s\",\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
        "\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":%d,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,"
        "\"maxThreadsPerSM\":%d,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":%llu,"
        "\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,\"l2CacheSize\":%d,\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000}",
        one->name, one->multiprocessors, one->shared_per_block_optin, one->major >= 8 ? 1024 : 0,
        one->blocks_per_multiprocessor, one->threads_per_multiprocessor, (unsigned long long)one->memory, one->clock_khz,
        one->memory_clock_khz, one->l2, one->major * 100 + one->minor * 10);
    int status = real.create(DEVICE, &real.device);
    if (!status) status = real.set(real.device, DEVICE_JSON, TYPE_CHAR, length, text);
    if (!status) status = real.finalize(real.device);
    if (status) give_up("cuDNN does not take this card");
}

const real_cudnn_t *real_cudnn(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return real.create ? &real : NULL;
}
