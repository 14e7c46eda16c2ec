/* The profiler finds no kernels: none has run. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int standin_cuptiGetVersion(uint32_t *version) {
    *version = 130000;
    return 0;
}
int standin_cuptiGetResultString(int status, const char **text) {
    *text = status ? "an error of the stand-in" : "CUPTI_SUCCESS";
    return 0;
}
int standin_cuptiSubscribe(void **subscriber, void *callback, void *data) {
    *subscriber = malloc(8);
    return 0;
}
int standin_cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, void **record) {
    return 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED: there are no more */
}
int standin_cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    *dropped = 0;
    return 0;
}
int standin_cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
    *name = "a call";
    return 0;
}
