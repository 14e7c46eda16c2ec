/* Streams, events and graphs. Work is done when it is queued; what a stream keeps is the moment until which a card would
 * still be busy with it, and whether anybody has waited for it since. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct stream {
    int device, priority;
    uint64_t capture;         /* the capture it takes part in; 0: none */
    double busy_until;        /* seconds of the monotonic clock */
    uint64_t queued, awaited; /* pieces of work, and those of them that somebody has waited for */
    struct stream *next;
} stream_t;

typedef struct {
    double at; /* the moment at which the stream gets there; 0: it was never recorded */
    stream_t *stream;
    uint64_t place; /* behind so many pieces of the stream's work */
    uint64_t capture;
} event_t;

uint64_t launches;
static stream_t *streams; /* all there ever were: an event may outlive its stream */
static stream_t defaults[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t captures, captured_work;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void sleep_until(double moment) {
    double left = moment - now();
    if (left <= 0) return;
    struct timespec pause = {(time_t)left, (long)((left - (time_t)left) * 1e9)};
    nanosleep(&pause, NULL);
}

static stream_t *stream_of(stream_handle handle) { /* small numbers are the default streams */
    return (uintptr_t)handle > 4096 ? handle : &defaults[current_device];
}

int is_capturing(stream_handle stream) { return stream_of(stream)->capture != 0; }

static void queue(stream_t *stream, double seconds) {
    if (stream->capture) {
        captured_work++;
        return;
    }
    double moment = now();
    stream->busy_until = (stream->busy_until > moment ? stream->busy_until : moment) + seconds;
    stream->queued++;
}

void launched(stream_handle stream) {
    static double seconds = -1;
    if (seconds < 0) seconds = number_setting("CUDA_STANDIN_KERNEL_US", 0) * 1e-6;
    if (!is_capturing(stream)) __sync_add_and_fetch(&launches, 1);
    queue(stream_of(stream), seconds);
}

static void wait_for(stream_t *stream) {
    sleep_until(stream->busy_until);
    stream->awaited = stream->queued;
}

void wait_for_all(int device) {
    wait_for(&defaults[device]);
    for (stream_t *stream = streams; stream; stream = stream->next)
        if (stream->device == device) wait_for(stream);
}

status_t standin_cudaDeviceSynchronize(void) {
    status_t status = context(current_device);
    if (!status) wait_for_all(current_device);
    return noted(status);
}

status_t standin_cudaStreamCreateWithPriority(stream_t **handle, unsigned flags, int priority) {
    status_t status = context(current_device);
    if (status) return noted(status);
    stream_t *stream = calloc(1, sizeof *stream);
    stream->device = current_device, stream->priority = priority;
    pthread_mutex_lock(&lock);
    stream->next = streams, streams = stream;
    pthread_mutex_unlock(&lock);
    *handle = stream;
    return SUCCESS;
}
status_t standin_cudaStreamCreate(stream_t **handle) { return standin_cudaStreamCreateWithPriority(handle, 0, 0); }
status_t standin_cudaStreamCreateWithFlags(stream_t **handle, unsigned flags) {
    return standin_cudaStreamCreateWithPriority(handle, flags, 0);
}
status_t standin_cudaStreamDestroy(stream_handle handle) { return SUCCESS; }

status_t standin_cudaStreamSynchronize(stream_handle handle) {
    if (is_capturing(handle)) return noted(CAPTURE_UNSUPPORTED);
    wait_for(stream_of(handle));
    return SUCCESS;
}

static int is_done(const stream_t *stream, uint64_t place, double moment) {
    if (board()->events_pending && place > stream->awaited) return 0;
    return moment <= now();
}

status_t standin_cudaStreamQuery(stream_handle handle) {
    stream_t *stream = stream_of(handle);
    return is_done(stream, stream->queued, stream->busy_until) ? SUCCESS : NOT_READY;
}

status_t standin_cudaStreamWaitEvent(stream_handle handle, event_t *event, unsigned flags) {
    stream_t *stream = stream_of(handle);
    if (event->capture && !stream->capture) stream->capture = event->capture; /* it joins the capture */
    if (event->at > stream->busy_until) stream->busy_until = event->at;
    return SUCCESS;
}
status_t standin_cudaStreamGetPriority(stream_handle handle, int *priority) {
    *priority = stream_of(handle)->priority;
    return SUCCESS;
}
status_t standin_cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return SUCCESS;
}
status_t standin_cudaStreamAddCallback(stream_handle handle, void (*call)(stream_handle, status_t, void *), void *data,
                                       unsigned flags) {
    call(handle, SUCCESS, data);
    return SUCCESS;
}
status_t standin_cudaLaunchHostFunc(stream_handle handle, void (*call)(void *), void *data) {
    if (!is_capturing(handle)) call(data);
    return SUCCESS;
}

/* ---- Copies and fills, as work of a stream. */

status_t standin_cudaMemcpyAsync(void *target, const void *source, size_t bytes, int kind, stream_handle stream) {
    if (!is_capturing(stream)) copy((uintptr_t)target, (uintptr_t)source, bytes);
    queue(stream_of(stream), 0);
    return SUCCESS;
}
status_t standin_cudaMemcpy(void *target, const void *source, size_t bytes, int kind) {
    wait_for(stream_of(NULL));
    return standin_cudaMemcpyAsync(target, source, bytes, kind, NULL);
}
status_t standin_cudaMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t bytes, stream_handle stream) {
    return standin_cudaMemcpyAsync(target, source, bytes, 4, stream);
}
status_t standin_cudaMemcpy2DAsync(char *target, size_t target_pitch, const char *source, size_t source_pitch, size_t width,
                                   size_t height, int kind, stream_handle stream) {
    for (size_t row = 0; row < height; row++)
        standin_cudaMemcpyAsync(target + row * target_pitch, source + row * source_pitch, width, kind, stream);
    return SUCCESS;
}
status_t standin_cudaMemsetAsync(void *target, int value, size_t bytes, stream_handle stream) {
    if (!is_capturing(stream)) fill((uintptr_t)target, value, bytes);
    queue(stream_of(stream), 0);
    return SUCCESS;
}
status_t standin_cudaMemset(void *target, int value, size_t bytes) {
    return standin_cudaMemsetAsync(target, value, bytes, NULL);
}
status_t standin_cuMemsetD32Async(uint32_t *target, uint32_t value, size_t many, stream_handle stream) {
    for (size_t i = 0; i < many && !is_capturing(stream); i++) target[i] = value;
    return SUCCESS;
}
status_t standin_cuStreamWriteValue32(stream_handle stream, uint32_t *target, uint32_t value, unsigned flags) {
    *target = value;
    return SUCCESS;
}

/* ---- Events. */

status_t standin_cudaEventCreateWithFlags(event_t **event, unsigned flags) {
    status_t status = context(current_device);
    if (!status) *event = calloc(1, sizeof **event);
    return noted(status);
}
status_t standin_cudaEventCreate(event_t **event) { return standin_cudaEventCreateWithFlags(event, 0); }
status_t standin_cudaEventDestroy(event_t *event) {
    free(event);
    return SUCCESS;
}

status_t standin_cudaEventRecord(event_t *event, stream_handle handle) {
    stream_t *stream = stream_of(handle);
    double moment = now();
    queue(stream, 0);
    *event = (event_t){stream->busy_until > moment ? stream->busy_until : moment, stream, stream->queued, stream->capture};
    return SUCCESS;
}
status_t standin_cudaEventRecordWithFlags(event_t *event, stream_handle handle, unsigned flags) {
    return standin_cudaEventRecord(event, handle);
}

status_t standin_cudaEventQuery(event_t *event) {
    if (event->capture) return noted(CAPTURE_UNSUPPORTED);
    return !event->stream || is_done(event->stream, event->place, event->at) ? SUCCESS : NOT_READY;
}

status_t standin_cudaEventSynchronize(event_t *event) {
    if (!event->stream) return SUCCESS;
    sleep_until(event->at);
    if (event->stream->awaited < event->place) event->stream->awaited = event->place;
    return SUCCESS;
}

status_t standin_cudaEventElapsedTime(float *milliseconds, event_t *begin, event_t *end) {
    if (!begin->stream || !end->stream) return noted(INVALID_HANDLE);
    if (standin_cudaEventQuery(begin) || standin_cudaEventQuery(end)) return NOT_READY;
    *milliseconds = (end->at - begin->at) * 1e3;
    return SUCCESS;
}

/* Between processes an event has happened by the time it can be opened. */
status_t standin_cudaIpcGetEventHandle(void *handle, event_t *event) {
    memset(handle, 0, 64);
    return SUCCESS;
}
typedef struct {
    char reserved[64];
} ipc_event_t;
status_t standin_cudaIpcOpenEventHandle(event_t **event, ipc_event_t handle) {
    return standin_cudaEventCreateWithFlags(event, 0);
}

/* ---- Graphs: a capture runs the program once without its work; a replay does nothing. */

status_t standin_cudaStreamIsCapturing(stream_handle handle, int *is) {
    *is = is_capturing(handle);
    return SUCCESS;
}
status_t standin_cudaStreamGetCaptureInfo(stream_handle handle, int *is, unsigned long long *id, void **graph,
                                          const void ***dependencies, const void **edges, size_t *many) {
    stream_t *stream = stream_of(handle);
    *is = stream->capture != 0;
    if (id) *id = stream->capture;
    if (graph) *graph = stream->capture ? (void *)0x7000 : NULL;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (many) *many = 0;
    return SUCCESS;
}
status_t standin_cudaStreamBeginCapture(stream_handle handle, int mode) {
    if ((uintptr_t)handle <= 4096) return noted(CAPTURE_UNSUPPORTED); /* never the legacy default stream */
    stream_of(handle)->capture = __sync_add_and_fetch(&captures, 1);
    captured_work = 0;
    return SUCCESS;
}
status_t standin_cudaStreamEndCapture(stream_handle handle, uint64_t **graph) {
    uint64_t capture = stream_of(handle)->capture;
    if (!capture) return noted(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    for (stream_t *stream = streams; stream; stream = stream->next)
        if (stream->capture == capture) stream->capture = 0;
    pthread_mutex_unlock(&lock);
    *graph = malloc(sizeof **graph);
    **graph = captured_work ? captured_work : 1; /* the products of cuBLAS are work too, and not counted */
    return SUCCESS;
}
status_t standin_cudaThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int current;
    int before = current;
    current = *mode, *mode = before;
    return SUCCESS;
}
status_t standin_cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    *executable = malloc(8);
    return SUCCESS;
}
status_t standin_cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    return standin_cudaGraphInstantiateWithFlags(executable, graph, flags);
}
status_t standin_cudaGraphGetNodes(uint64_t *graph, void **nodes, size_t *many) {
    *many = nodes ? 0 : *graph; /* how many there are is asked, which is not */
    return SUCCESS;
}
status_t standin_cudaGraphNodeGetDependencies(void *node, void **from, void *edges, size_t *many) {
    *many = 0;
    return SUCCESS;
}
status_t standin_cudaGraphLaunch(void *executable, stream_handle stream) {
    launched(stream);
    return SUCCESS;
}
status_t standin_cudaGraphDestroy(void *graph) {
    free(graph);
    return SUCCESS;
}
status_t standin_cudaGraphExecDestroy(void *executable) {
    free(executable);
    return SUCCESS;
}
status_t standin_cudaGraphDebugDotPrint(void *graph, const char *path, unsigned flags) { return noted(NOT_SUPPORTED); }
