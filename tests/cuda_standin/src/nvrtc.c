/* Compiles every kernel to the same empty one. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGE_BYTES = 16 };

int standin_nvrtcVersion(int *major, int *minor) {
    *major = 13, *minor = 0;
    return 0;
}
int standin_nvrtcCreateProgram(void **program, const char *source) {
    *program = malloc(8);
    return 0;
}
const char *standin_nvrtcGetErrorString(int status) { return status ? "an error of the stand-in" : "NVRTC_SUCCESS"; }
int standin_nvrtcGetCUBINSize(void *program, size_t *bytes) {
    *bytes = IMAGE_BYTES;
    return 0;
}
int standin_nvrtcGetPTXSize(void *program, size_t *bytes) {
    *bytes = IMAGE_BYTES;
    return 0;
}
int standin_nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    *bytes = 1;
    return 0;
}
int standin_nvrtcGetCUBIN(void *program, char *image) {
    memset(image, 0, IMAGE_BYTES);
    return 0;
}
int standin_nvrtcGetPTX(void *program, char *image) {
    memset(image, 0, IMAGE_BYTES);
    return 0;
}
int standin_nvrtcGetProgramLog(void *program, char *text) {
    *text = 0;
    return 0;
}
int standin_nvrtcGetLoweredName(void *program, const char *name, const char **lowered) {
    *lowered = name;
    return 0;
}
