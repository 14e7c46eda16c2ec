/* Loads what computes results (results.cpp), into a process that has torch. */
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static __thread const int64_t *next_count;

static void answer(const int64_t *count) { next_count = count; }

int answered(void *target, size_t bytes) {
    if (!next_count || bytes > sizeof *next_count) return 0;
    memcpy(target, next_count, bytes); /* x86-64 puts the low bytes first */
    return 1;
}

static void load(void) {
    size_t largest = bytes_setting("CUDA_STANDIN_COMPUTED", 1ull << 20);
    void *torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!largest || !torch) return;
    Dl_info self;
    char path[4096];
    if (!dladdr(load, &self)) return;
    int folder = (int)(strrchr(self.dli_fname, '/') - self.dli_fname);
    snprintf(path, sizeof path, "%.*s/libcuda_standin_results.so", folder, self.dli_fname);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void (*compute)(size_t, void (*)(uintptr_t, size_t), void (*)(const int64_t *)) =
        library ? dlsym(library, "cuda_standin_compute_results") : NULL;
    if (compute)
        compute(largest, zero, answer);
    else
        fprintf(stderr, "cuda_standin: results are not computed: %s\n", dlerror());
}

void compute_results(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}
