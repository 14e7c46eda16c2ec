/* What the parts of the CUDA runtime know of each other. A function named standin_X is exported as X, through the gate. */
#pragma once

#include "board.h"
#include "cards.h"
#include "gate.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

typedef int status_t; /* cudaError_t and CUresult; the numbers below are the same in both */
typedef void *stream_handle;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
};

/* device.c: devices and errors. */
extern __thread int current_device;
int physical(int device);     /* the machine's number of one of the devices that CUDA_VISIBLE_DEVICES leaves */
int visible_devices(void);
status_t context(int device); /* makes the context of a device, which takes memory; once */
extern int contexts;          /* how many this process has made */
status_t noted(status_t status); /* keeps an error for cudaGetLastError and returns it */

/* memory.c: what is where. */
void fill(uintptr_t target, int value, size_t bytes);
void copy(uintptr_t target, uintptr_t source, size_t bytes);
void zero(uintptr_t target, size_t bytes); /* whole pages of a device are given up */

/* results.c */
void compute_results(void);                /* from now on, for operators of torch; once */
int answered(void *target, size_t bytes);  /* whether the count that this thread reads is known, which is then put there */

/* streams.c */
int is_capturing(stream_handle stream);
void launched(stream_handle stream); /* a kernel was queued there */
void wait_for_all(int device);
extern uint64_t launches; /* kernels of this process so far */
