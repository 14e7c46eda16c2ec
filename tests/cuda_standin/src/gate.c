#include "gate.h"

#include "board.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int always = 1, never = 0, traced;
__attribute__((visibility("default"))) int *standin_armed = &never;
static fault_t own[MAX_FAULTS]; /* of CUDA_STANDIN_FAULTS; their calls are counted in each process by itself */

void arm(void) { standin_armed = &always; }

/* "cudaMalloc@3=2": the third call returns 2. "@3+": and all after it. "=700!": the context is lost with it.
 * "cudaMemcpyAsync~500": each takes 500 µs longer. Several are separated by commas. */
static void parse(const char *text) {
    for (int i = 0; *text && i < MAX_FAULTS; i++) {
        fault_t *fault = &own[i];
        size_t length = strcspn(text, "@=~,");
        if (length >= sizeof fault->function) length = sizeof fault->function - 1;
        memcpy(fault->function, text, length);
        text += length;
        fault->times = -1;
        char *end = (char *)text;
        if (*end == '@') {
            fault->skip = strtol(end + 1, &end, 10) - 1;
            if (*end == '+')
                end++;
            else
                fault->times = 1;
        }
        if (*end == '=') {
            fault->code = strtol(end + 1, &end, 10);
            if (*end == '!') fault->sticky = 1, end++;
        }
        if (*end == '~') fault->delay_us = strtol(end + 1, &end, 10);
        text = end + strspn(end, ",");
        if (end == text && *end) {
            fprintf(stderr, "cuda_standin: CUDA_STANDIN_FAULTS is not understood from \"%s\" on\n", end);
            abort();
        }
    }
}

__attribute__((constructor)) static void prepare(void) {
    const char *faults = getenv("CUDA_STANDIN_FAULTS");
    traced = getenv("CUDA_STANDIN_TRACE") != NULL;
    if (faults) parse(faults);
    standin_armed = traced || faults ? &always : &board()->armed;
}

/* The code with which a fault strikes this call; 0: none does. */
static int struck_by(fault_t *faults, const char *function) {
    for (int i = 0; i < MAX_FAULTS; i++) {
        fault_t *fault = &faults[i];
        if (!fault->function[0] || (fault->pid && fault->pid != getpid())) continue;
        if (fnmatch(fault->function, function, 0)) continue;
        if (__sync_sub_and_fetch(&fault->skip, 1) >= 0) continue;
        if (fault->times >= 0 && __sync_sub_and_fetch(&fault->times, 1) < 0) {
            fault->times = 0;
            continue;
        }
        if (fault->delay_us) {
            struct timespec pause = {fault->delay_us / 1000000, fault->delay_us % 1000000 * 1000l};
            nanosleep(&pause, NULL);
        }
        if (fault->code) {
            library_struck(function, fault->code, fault->sticky);
            return fault->code;
        }
    }
    return 0;
}

__attribute__((visibility("default"))) int standin_gate(const char *function) {
    if (traced) fprintf(stderr, "[stand-in %d] %s\n", (int)getpid(), function);
    int code = struck_by(own, function);
    if (!code) code = struck_by(board()->faults, function);
    return code ? code : library_state(function);
}
