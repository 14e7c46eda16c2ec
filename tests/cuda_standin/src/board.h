/* What every process on one stand-in machine shares: who has how much memory on which device, and which calls are to
 * fail. It is a small file that the CUDA libraries, NVML and the tests map; machine.py has the same layout. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { MAX_DEVICES = 16, MAX_PROCESSES = 256, MAX_FAULTS = 32 };

/* A call that fails or is slow. */
typedef struct {
    char function[64]; /* a pattern as in a shell; empty: there is no fault here */
    int32_t pid;       /* whom it strikes; 0: everybody */
    int32_t code;      /* what the call returns; 0: it is made, and only slow */
    int32_t sticky;    /* whether the context of the process is lost with it */
    int32_t delay_us;
    int64_t skip;      /* calls that go well before it */
    int64_t times;     /* calls that it strikes after those; negative: all */
} fault_t;

/* A process and what it has, by physical device. */
typedef struct {
    int32_t pid;
    int32_t padding;
    uint64_t started; /* in clock ticks since the machine started: a number of a process is used again, this is not */
    uint64_t used[MAX_DEVICES];
    uint8_t context[MAX_DEVICES];
} process_t;

typedef struct {
    int32_t armed;            /* whether any fault or lost device is to be looked for */
    int32_t events_pending;   /* whether events stay unfinished until somebody waits for them */
    int32_t lost[MAX_DEVICES]; /* the error of every call on a device that fell off the bus; 0: it is there */
    fault_t faults[MAX_FAULTS];
    process_t processes[MAX_PROCESSES];
} board_t;

_Static_assert(sizeof(fault_t) == 96 && sizeof(process_t) == 160, "machine.py counts on it");

/* The file, mapped once. Without one (CUDA_STANDIN_STATE cannot be written) the process is alone on the machine. */
board_t *board(void);

/* The path of the file with something added, for other files that processes share. */
void board_path(char *path, size_t length, const char *suffix);

/* This process's place on the board. */
process_t *my_process(void);

/* Gives the place back, with all that is noted there. */
void leave_board(void);

/* Bytes in use on a device by all processes that live. */
uint64_t used_by_all(int device);

int is_alive(const process_t *process);
