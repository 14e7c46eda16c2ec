/* Devices, their properties, contexts of the driver API, and errors. */
#include "runtime.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__thread int current_device;
static __thread status_t last_error;
static status_t broken; /* the error of this process's context, which no call mends */

status_t noted(status_t status) {
    if (status) last_error = status;
    return status;
}

/* ---- Which devices a process sees. */

static int seen[MAX_DEVICES], seen_count;

/* CUDA_VISIBLE_DEVICES, read once: numbers and UUIDs up to the first that names no device, as the driver does. */
static void look_at_visible(void) {
    int all = device_count();
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        while (seen_count < all) seen[seen_count] = seen_count, seen_count++;
        return;
    }
    while (*text && seen_count < MAX_DEVICES) {
        size_t length = strcspn(text, ",");
        char *end = (char *)text;
        long device = -1;
        if (strncmp(text, "GPU-", 4) == 0)
            device = strtol(text + length - 1, &end, 16); /* the last digit of the UUID */
        else
            device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= all) return;
        seen[seen_count++] = device;
        text += length + (text[length] == ',');
    }
}

int visible_devices(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_at_visible);
    return seen_count;
}

int physical(int device) { return device >= 0 && device < visible_devices() ? seen[device] : 0; }

static int exists(int device) { return device >= 0 && device < visible_devices(); }

status_t standin_cudaGetDeviceCount(int *count) {
    *count = visible_devices();
    return *count ? SUCCESS : noted(NO_DEVICE);
}
status_t standin_cudaGetDevice(int *device) {
    *device = current_device;
    return SUCCESS;
}
status_t standin_cudaSetDevice(int device) {
    if (!exists(device)) return noted(INVALID_DEVICE);
    current_device = device;
    return noted(context(device));
}

/* ---- Properties. Offsets of the fields of cudaDeviceProp: CUDA 13.0, driver_types.h. */

enum { PROPERTIES_BYTES = 1008, INT = 4, SIZE = 8 };

status_t standin_cudaGetDeviceProperties(char *properties, int device) {
    compute_results(); /* torch asks for them before its first operator */
    if (!exists(device)) return noted(INVALID_DEVICE);
    const card_t *one = card();
    const struct {
        int offset, bytes;
        uint64_t value;
    } fields[] = {
        {288, SIZE, one->memory},                      /* totalGlobalMem */
        {296, SIZE, 49152},                            /* sharedMemPerBlock */
        {304, INT, 65536},                             /* regsPerBlock */
        {308, INT, 32},                                /* warpSize */
        {312, SIZE, 2147483647},                       /* memPitch */
        {320, INT, 1024},                              /* maxThreadsPerBlock */
        {324, INT, 1024}, {328, INT, 1024}, {332, INT, 64},             /* maxThreadsDim */
        {336, INT, 2147483647}, {340, INT, 65535}, {344, INT, 65535},   /* maxGridSize */
        {352, SIZE, 65536},                            /* totalConstMem */
        {360, INT, one->major}, {364, INT, one->minor},
        {368, SIZE, 512}, {376, SIZE, 32},             /* textureAlignment, texturePitchAlignment */
        {384, INT, one->multiprocessors},
        {392, INT, 1},                                 /* canMapHostMemory */
        {560, INT, 1},                                 /* concurrentKernels */
        {564, INT, 1},                                 /* ECCEnabled */
        {568, INT, pci_bus(physical(device))},
        {584, INT, 3},                                 /* asyncEngineCount */
        {588, INT, 1},                                 /* unifiedAddressing */
        {592, INT, one->bus_bits},                     /* memoryBusWidth */
        {596, INT, one->l2},                           /* l2CacheSize */
        {600, INT, one->l2 / 4 * 3},                   /* persistingL2CacheMaxSize */
        {604, INT, one->threads_per_multiprocessor},
        {608, INT, 1}, {612, INT, 1}, {616, INT, 1},   /* stream priorities, L1 caches */
        {624, SIZE, one->shared_per_multiprocessor},
        {632, INT, 65536},                             /* regsPerMultiprocessor */
        {636, INT, 1},                                 /* managedMemory */
        {656, INT, 1}, {660, INT, 1},                  /* concurrentManagedAccess, computePreemptionSupported */
        {668, INT, 1},                                 /* cooperativeLaunch */
        {672, SIZE, one->shared_per_block_optin},
        {688, INT, one->blocks_per_multiprocessor},
        {696, SIZE, 1024},                             /* reservedSharedMemPerBlock */
        {704, INT, 1},                                 /* hostRegisterSupported */
        {720, INT, 1},                                 /* memoryPoolsSupported */
        {744, INT, 1},                                 /* ipcEventSupported */
        {748, INT, one->major >= 9},                   /* clusterLaunch */
    };
    memset(properties, 0, PROPERTIES_BYTES);
    snprintf(properties, 256, "%s", one->name);
    device_uuid(physical(device), (unsigned char *)properties + 256);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        memcpy(properties + fields[i].offset, &fields[i].value, fields[i].bytes);
    return SUCCESS;
}

/* By the numbers of cudaDeviceAttr, which are those of CUdevice_attribute. */
status_t standin_cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (!exists(device)) return noted(INVALID_DEVICE);
    const card_t *one = card();
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;       /* threads of a block */
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;                 /* blocks of a grid */
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break;                      /* shared memory of a block */
    case 9: case 12: case 82: *value = 65536; break;    /* constant memory, registers */
    case 10: *value = 32; break;                        /* warp */
    case 13: *value = one->clock_khz; break;
    case 16: *value = one->multiprocessors; break;
    case 33: *value = pci_bus(physical(device)); break;
    case 37: *value = one->bus_bits; break;
    case 38: *value = one->l2; break;
    case 39: *value = one->threads_per_multiprocessor; break;
    case 40: *value = 3; break;                         /* copy engines */
    case 75: *value = one->major; break;
    case 76: *value = one->minor; break;
    case 81: *value = one->shared_per_multiprocessor; break;
    case 97: *value = one->shared_per_block_optin; break;
    case 106: *value = one->blocks_per_multiprocessor; break;
    case 111: *value = 1024; break;                     /* reserved shared memory of a block */
    case 120: *value = one->major >= 9; break;          /* clusters */
    case 19: case 31: case 32: case 41: case 78: case 79: case 80: case 83: /* what every card since Volta can */
    case 89: case 90: case 95: case 98: case 99: case 102: case 115: *value = 1; break;
    default: *value = 0;
    }
    return SUCCESS;
}
status_t standin_cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02X:00.0", pci_bus(physical(device)));
    return SUCCESS;
}
status_t standin_cudaDeviceCanAccessPeer(int *can, int one, int other) {
    *can = one != other;
    return SUCCESS;
}
status_t standin_cudaDriverGetVersion(int *version) {
    *version = driver_version();
    return SUCCESS;
}
status_t standin_cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

/* ---- The pool of cudaMallocAsync. */

status_t standin_cudaDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = (void *)(uintptr_t)(0x9000 + device);
    return SUCCESS;
}
status_t standin_cudaMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) {
    int device = (uintptr_t)pool - 0x9000;
    *value = attribute >= 5 ? my_process()->used[physical(device)] : 0; /* 5 and beyond: bytes in it */
    return SUCCESS;
}

/* ---- Errors. */

static const struct {
    status_t code;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {999, "cudaErrorUnknown", "unknown error"},
};

const char *standin_cudaGetErrorString(status_t code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].text;
    return "unrecognized error code";
}
const char *standin_cudaGetErrorName(status_t code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].name;
    return "unrecognized error code";
}
status_t standin_cuGetErrorString(status_t code, const char **text) {
    *text = standin_cudaGetErrorString(code);
    return SUCCESS;
}
status_t standin_cuGetErrorName(status_t code, const char **text) {
    *text = standin_cudaGetErrorName(code);
    return SUCCESS;
}
status_t standin_cudaGetLastError(void) {
    status_t status = broken ? broken : last_error;
    last_error = SUCCESS;
    return status;
}
status_t standin_cudaPeekAtLastError(void) { return broken ? broken : last_error; }

/* Calls that need no context and go on when it is lost. */
static int needs_context(const char *function) {
    static const char *const free_of_it[] = {"cudaGetDevice*", "cuDeviceGet*", "cudaGetLastError", "cudaPeekAtLastError",
        "cudaDeviceGetAttribute", "cudaDeviceGetPCIBusId", "cuda*GetVersion", "cuDriverGetVersion", "cuInit", "cuGetError*",
        "cudaGetDriverEntryPoint*", "cudaStreamIsCapturing", "cudaStreamGetCaptureInfo", "cudaThreadExchangeStreamCaptureMode",
        "cuDevicePrimaryCtxGetState", "cuGetProcAddress*", "cupti*", "*Destroy*", "ncclGetUniqueId", "ncclGetVersion",
        "ncclCommAbort", "ncclCommGetAsyncError", "ncclGroup*", "nvrtc*"};
    for (size_t i = 0; i < sizeof free_of_it / sizeof *free_of_it; i++)
        if (fnmatch(free_of_it[i], function, 0) == 0) return 0;
    return 1;
}

/* What each library calls an error of the context under it. */
static int in_words_of(const char *function, status_t status) {
    if (strncmp(function, "cublas", 6) == 0) return 13;   /* CUBLAS_STATUS_EXECUTION_FAILED */
    if (strncmp(function, "cudnn", 5) == 0) return 5000;  /* CUDNN_STATUS_EXECUTION_FAILED */
    if (strncmp(function, "cusolver", 8) == 0) return 6;  /* CUSOLVER_STATUS_EXECUTION_FAILED */
    if (strncmp(function, "cusparse", 8) == 0) return 6;
    if (strncmp(function, "cufft", 5) == 0) return 6;     /* CUFFT_EXEC_FAILED */
    if (strncmp(function, "nccl", 4) == 0) return 1;      /* ncclUnhandledCudaError */
    return status;
}

int library_state(const char *function) {
    if (!needs_context(function)) return 0;
    status_t status = broken;
    if (!status && visible_devices()) status = board()->lost[physical(current_device)];
    if (!status) return 0;
    if (strncmp(function, "cuda", 4) == 0) last_error = status;
    return in_words_of(function, status);
}

void library_struck(const char *function, int code, int sticky) {
    if (strncmp(function, "cuda", 4) == 0) last_error = code;
    if (!sticky) return;
    broken = code;
    arm();
}

/* ---- The process's beginning and end. */

/* A process that was forked off cannot use the context of its parent. */
static void forked(void) {
    if (contexts) library_struck("fork", NOT_INITIALIZED, 1);
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
__attribute__((destructor)) static void end(void) { leave_board(); }

/* ---- Contexts of the driver API: those of the devices, by number. */

static void *context_of(int device) { return (void *)(uintptr_t)(0x5000 + device); }

status_t standin_cuInit(unsigned flags) { return device_count() ? SUCCESS : NO_DEVICE; }
status_t standin_cuDriverGetVersion(int *version) { return standin_cudaDriverGetVersion(version); }
status_t standin_cuDeviceGetCount(int *count) {
    *count = visible_devices();
    return SUCCESS;
}
status_t standin_cuDeviceGet(int *device, int number) {
    if (!exists(number)) return INVALID_DEVICE;
    *device = number;
    return SUCCESS;
}
status_t standin_cuDeviceGetName(char *text, int length, int device) {
    snprintf(text, length, "%s", card()->name);
    return SUCCESS;
}
status_t standin_cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    device_uuid(physical(device), uuid);
    return SUCCESS;
}
status_t standin_cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = card()->memory;
    return SUCCESS;
}
status_t standin_cuDeviceGetAttribute(int *value, int attribute, int device) {
    return standin_cudaDeviceGetAttribute(value, attribute, device);
}
status_t standin_cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0, *active = my_process()->context[physical(device)];
    return SUCCESS;
}
status_t standin_cuDevicePrimaryCtxRetain(void **found, int device) {
    *found = context_of(device);
    return context(device);
}
status_t standin_cuCtxGetCurrent(void **found) {
    *found = my_process()->context[physical(current_device)] ? context_of(current_device) : NULL;
    return SUCCESS;
}
status_t standin_cuCtxSetCurrent(void *chosen) {
    if (chosen) current_device = (uintptr_t)chosen - 0x5000;
    return SUCCESS;
}
status_t standin_cuCtxPushCurrent_v2(void *chosen) { return standin_cuCtxSetCurrent(chosen); }
status_t standin_cuCtxPopCurrent_v2(void **found) { return standin_cuCtxGetCurrent(found); }
status_t standin_cuCtxGetDevice(int *device) {
    *device = current_device;
    return SUCCESS;
}

/* torch asks for the driver's functions by name, without the version that ends some of them. */
status_t standin_cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                  unsigned long long flags, int *found) {
    static void *self;
    if (!self) {
        Dl_info info;
        dladdr((void *)standin_cuInit, &info);
        self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    char versioned[128];
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *function = dlsym(self, name);
    if (!*function) *function = dlsym(self, versioned);
    if (found) *found = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
    return SUCCESS;
}
status_t standin_cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
    return standin_cudaGetDriverEntryPointByVersion(name, function, 13000, flags, found);
}
status_t standin_cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found) {
    standin_cudaGetDriverEntryPointByVersion(name, function, version, flags, found);
    return *function ? SUCCESS : 500;
}

/* For the tests: kernels that this process has launched. */
__attribute__((visibility("default"))) uint64_t cuda_standin_launches(void) { return launches; }
