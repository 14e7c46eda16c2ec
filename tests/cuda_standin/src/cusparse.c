/* Sparse products do nothing; those whose result has a size of its own have one without elements. */
#include "sizes.h"

#include <stdint.h>

#define FOR_ALL(function, place, type) \
    SIZE_OF(cusparseS##function, place, type, WORK) \
    SIZE_OF(cusparseD##function, place, type, WORK) \
    SIZE_OF(cusparseC##function, place, type, WORK) \
    SIZE_OF(cusparseZ##function, place, type, WORK)

SIZE_OF(cusparseSpMM_bufferSize, 10, size_t, WORK)
SIZE_OF(cusparseSpMV_bufferSize, 9, size_t, WORK)
SIZE_OF(cusparseSDDMM_bufferSize, 10, size_t, WORK)
SIZE_OF(cusparseSpSV_bufferSize, 9, size_t, WORK)
SIZE_OF(cusparseSpSM_bufferSize, 10, size_t, WORK)
SIZE_OF(cusparseSpGEMM_workEstimation, 11, size_t, WORK)
SIZE_OF(cusparseSpGEMM_compute, 11, size_t, WORK)
SIZE_OF(cusparseXcoosort_bufferSizeExt, 6, size_t, WORK)
SIZE_OF(cusparseXcsrsort_bufferSizeExt, 6, size_t, WORK)
SIZE_OF(cusparseXcsrgeam2Nnz, 13, int, 0)
FOR_ALL(csrgeam2_bufferSizeExt, 19, size_t)
FOR_ALL(bsrsv2_bufferSize, 11, int)
FOR_ALL(bsrsm2_bufferSize, 13, int)

int standin_cusparseSpMatGetSize(void *matrix, int64_t *rows, int64_t *columns, int64_t *elements) {
    *rows = *columns = *elements = 0;
    return 0;
}
const char *standin_cusparseGetErrorString(int status) { return status ? "an error of the stand-in" : "success"; }
