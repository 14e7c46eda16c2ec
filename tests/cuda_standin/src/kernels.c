/* Kernels: they are registered, asked about and launched, and do nothing. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned x, y, z;
} dim3;

status_t standin_cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                  stream_handle stream) {
    status_t status = context(current_device);
    if (!status) launched(stream);
    return noted(status);
}
status_t standin_cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                             stream_handle stream) {
    return standin_cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
status_t standin___cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                    stream_handle stream) {
    return standin_cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

typedef struct {
    dim3 grid, block;
    size_t shared;
    stream_handle stream;
} launch_t; /* the beginning of cudaLaunchConfig_t */

status_t standin_cudaLaunchKernelExC(const launch_t *launch, const void *function, void **arguments) {
    return standin_cudaLaunchKernel(function, launch->grid, launch->block, arguments, launch->shared, launch->stream);
}
status_t standin___cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return SUCCESS;
}

/* What <<<...>>> is compiled to: the configuration is put aside and fetched by the function that launches. */
static __thread launch_t configurations[16];
static __thread int depth;

unsigned standin___cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, stream_handle stream) {
    if (depth < 16) configurations[depth] = (launch_t){grid, block, shared, stream};
    depth++;
    return 0;
}
status_t standin___cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, stream_handle *stream) {
    const launch_t *launch = &configurations[--depth];
    *grid = launch->grid, *block = launch->block, *shared = launch->shared, *stream = launch->stream;
    return SUCCESS;
}
void **standin___cudaRegisterFatBinary(void *binary) {
    static void *handle[1];
    return handle;
}
void standin___cudaRegisterFatBinaryEnd(void **handle) {}
void standin___cudaUnregisterFatBinary(void **handle) {}
char standin___cudaInitModule(void **handle) { return 1; }
void standin___cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid,
                                    void *bid, void *block, void *grid, int *warp) {}
void standin___cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes,
                               int constant, int global) {}

typedef struct {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, dynamic_shared, carveout;
} function_t; /* the beginning of cudaFuncAttributes */

status_t standin_cudaFuncGetAttributes(function_t *found, const void *function) {
    int version = 10 * card()->major + card()->minor; /* CUB chooses its kernels by it */
    *found = (function_t){0, 0, 0, 1024, 32, version, version, 0, 48 * 1024, -1};
    return SUCCESS;
}
status_t standin_cudaFuncSetAttribute(const void *function, int attribute, int value) { return SUCCESS; }

static int blocks_of(int threads) { /* that fit on a multiprocessor, were it for their threads alone */
    int most = threads > 0 ? card()->threads_per_multiprocessor / threads : 1;
    return most < 1 ? 1 : most > card()->blocks_per_multiprocessor ? card()->blocks_per_multiprocessor : most;
}
status_t standin_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
    *blocks = blocks_of(threads);
    return SUCCESS;
}
status_t standin_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                        size_t shared, unsigned flags) {
    *blocks = blocks_of(threads);
    return SUCCESS;
}
status_t standin_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    *blocks = blocks_of(threads);
    return SUCCESS;
}
status_t standin_cudaGetSymbolAddress(void **address, const void *symbol) {
    static char place[1 << 16];
    *address = place;
    return SUCCESS;
}
status_t standin_cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes, size_t offset, int kind) {
    return SUCCESS;
}

/* ---- Kernels that are compiled while the program runs. */

static status_t handle_for(void **handle) {
    *handle = malloc(8);
    return SUCCESS;
}
status_t standin_cuModuleLoad(void **module, const char *path) { return handle_for(module); }
status_t standin_cuModuleLoadData(void **module, const void *image) { return handle_for(module); }
status_t standin_cuModuleLoadDataEx(void **module, const void *image, unsigned many, void *options, void **values) {
    return handle_for(module);
}
status_t standin_cuModuleUnload(void *module) { return SUCCESS; }
status_t standin_cuModuleGetFunction(void **function, void *module, const char *name) { return handle_for(function); }
status_t standin_cudaLibraryLoadData(void **library, const void *code, void *options, void **values, unsigned many,
                                     void *more, void **more_values, unsigned more_many) {
    return handle_for(library);
}
status_t standin_cudaLibraryGetKernel(void **kernel, void *library, const char *name) { return handle_for(kernel); }
status_t standin_cudaLibraryUnload(void *library) { return SUCCESS; }
status_t standin_cuLinkCreate_v2(unsigned many, void *options, void **values, void **state) { return handle_for(state); }
status_t standin_cuLinkComplete(void *state, void **image, size_t *bytes) {
    static char cubin[64];
    *image = cubin, *bytes = sizeof cubin;
    return SUCCESS;
}
status_t standin_cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                unsigned block_y, unsigned block_z, unsigned shared, stream_handle stream) {
    launched(stream);
    return SUCCESS;
}
status_t standin_cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                           stream_handle stream) {
    launched(stream);
    return SUCCESS;
}
status_t standin_cuFuncGetAttribute(int *value, int attribute, void *function) {
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads of a block, registers of a thread */
    return SUCCESS;
}
status_t standin_cuTensorMapEncodeTiled(void *map) {
    memset(map, 0, 128);
    return SUCCESS;
}
