/* NVIDIA's own cuDNN, asked for what this machine's card would do; nothing of it is executed. */
#pragma once

#include <stdint.h>

typedef struct {
    int (*create)(int, void **), (*destroy)(void *), (*finalize)(void *);
    int (*set)(void *, int, int, int64_t, const void *), (*get)(void *, int, int, int64_t, int64_t *, void *);
    void *device; /* this machine's card */
} real_cudnn_t;

/* By CUDA_STANDIN_REAL_CUDNN, the path of libcudnn.so.9; NULL where that is not set. It ends the process where the
 * library cannot be asked: a comparison must not be made against nothing. */
const real_cudnn_t *real_cudnn(void);
