/* What every call goes through: the scenario as it is now, its faults, and the life of handles. */
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "scenario.h"

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { HANDLES = 65536, COUNTED = 4096 };

typedef struct { int gpu; int dead; } handle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static scenario now_playing;
static char path[4096];
static struct timespec seen_mtime;
static ino_t seen_inode;
static int initialised, sessions = 1;
static handle handles[HANDLES];
static int handle_count, current_handle[GPUS];
static long misuse;
static struct { const char *function; int gpu; long calls; } counted[COUNTED];
static int counted_count;

static double monotonic(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static double elapsed(void) { return monotonic() - now_playing.epoch; }

/* With the lock held. */
static void refresh(void) {
    struct stat at;
    if (!path[0]) {
        const char *named = getenv("NVML_STUB_SCENARIO");
        if (!named) return;
        snprintf(path, sizeof path, "%s", named);
    }
    if (now_playing.epoch == 0) now_playing.epoch = monotonic();
    if (stat(path, &at)) {
        now_playing.count = 0;
        return;
    }
    if (at.st_ino == seen_inode && !memcmp(&at.st_mtim, &seen_mtime, sizeof seen_mtime)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    scenario *next = malloc(sizeof *next);
    parse(next, file, now_playing.epoch);
    fclose(file);
    now_playing = *next;
    free(next);
    seen_inode = at.st_ino;
    seen_mtime = at.st_mtim;
}

static void count_call(const char *function, int which) {
    for (int i = 0; i < counted_count; i++)
        if (counted[i].gpu == which && !strcmp(counted[i].function, function)) {
            counted[i].calls++;
            return;
        }
    if (counted_count < COUNTED) {
        counted[counted_count].function = function;
        counted[counted_count].gpu = which;
        counted[counted_count++].calls = 1;
    }
}

/* The fault of this kind that holds now; with the lock held. A function is hit by name, a GPU's also by "*". */
static fault *holds(const char *function, int which, char kind) {
    double at = now_playing.fault_count ? elapsed() : 0;
    for (int i = 0; i < now_playing.fault_count; i++) {
        fault *f = &now_playing.faults[i];
        int named = !strcmp(f->function, function) || (which != ANY && !strcmp(f->function, "*"));
        if (f->kind == kind && named && (f->gpu == ANY || f->gpu == which) && at >= f->from && at < f->to) return f;
    }
    return NULL;
}

static void nap(double seconds) {
    struct timespec for_ = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&for_, NULL);
}

/* What a call on this GPU (or on none) gives: waits out a hang or a delay first. */
static int enter(const char *function, int which) {
    pthread_mutex_lock(&lock);
    refresh();
    count_call(function, which);
    fault *slow = holds(function, which, 'd');
    double delay = slow ? slow->code * 1e-3 : 0;
    while (holds(function, which, 'h')) {
        pthread_mutex_unlock(&lock);
        nap(0.002);
        pthread_mutex_lock(&lock);
        refresh();
    }
    pthread_mutex_unlock(&lock);
    if (delay > 0) nap(delay);
    pthread_mutex_lock(&lock);
    fault *wrong = holds(function, which, 'c');
    int code = wrong ? wrong->code : SUCCESS;
    pthread_mutex_unlock(&lock);
    return code;
}

static int enter_library(const char *function) {
    int code = enter(function, ANY);
    if (code) return code;
    return initialised > 0 ? SUCCESS : UNINITIALIZED;
}

static int enter_device(const char *function, handle *device, gpu *copy) {
    if (device < handles || device >= handles + HANDLES) return INVALID_ARGUMENT;
    int code = enter(function, device->gpu);
    pthread_mutex_lock(&lock);
    if (device->dead) {
        misuse++;
        code = GPU_IS_LOST;
    } else if (code == GPU_IS_LOST)
        device->dead = 1;
    *copy = now_playing.gpus[device->gpu];
    pthread_mutex_unlock(&lock);
    return code;
}

/* With the lock held: the living handle of a GPU, a new one if the last has died. */
static handle *handle_of(int which) {
    int at = current_handle[which];
    if (!at || handles[at].dead) {
        if (handle_count + 1 >= HANDLES) return NULL;
        at = current_handle[which] = ++handle_count;
        handles[at].gpu = which;
        handles[at].dead = 0;
    }
    return &handles[at];
}

static int give_handle(const char *function, int which, handle **device) {
    int code = enter(function, which);
    if (code) return code;
    pthread_mutex_lock(&lock);
    *device = handle_of(which);
    pthread_mutex_unlock(&lock);
    return *device ? SUCCESS : UNKNOWN;
}

void nvml_stub_scenario(const char *file) {
    pthread_mutex_lock(&lock);
    snprintf(path, sizeof path, "%s", file);
    seen_inode = 0;
    now_playing.epoch = 0;
    misuse = 0;
    counted_count = 0;
    pthread_mutex_unlock(&lock);
}

long nvml_stub_misuse(void) { return misuse; }

long nvml_stub_calls(const char *function, int which) {
    long calls = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < counted_count; i++)
        if (!strcmp(counted[i].function, function) && (which == ANY || counted[i].gpu == which)) calls += counted[i].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}
