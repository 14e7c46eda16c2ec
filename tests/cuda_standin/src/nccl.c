/* NCCL: ranks exchange what they hold, through a file that all of one communicator map. A collective is done by the time
 * its call returns, or its group ends: every rank posts its data a chunk at a time, and takes a chunk once all have
 * posted it. A rank whose peer has died gets an error instead of waiting for ever. */
#include "board.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

typedef int status_t;
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { MAX_RANKS = 16, SLOTS = 2, CHUNK = 1 << 19 };
enum { COPY_DEFAULT = 4 }; /* cudaMemcpyDefault */

extern int cudaGetDevice(int *device);
extern int cudaMemcpyAsync(void *target, const void *source, size_t bytes, int kind, void *stream);
extern int cudaMemsetAsync(void *target, int value, size_t bytes, void *stream);
extern int cudaMalloc(void **pointer, size_t bytes);
extern int cudaFree(void *pointer);
extern int cudaStreamIsCapturing(void *stream, int *is);
extern int cuda_standin_is_untouched(const void *source, size_t bytes); /* memory.c */

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND, RECEIVE };

/* What a rank says about a chunk; all ranks must mean the same operation. */
typedef struct {
    int32_t kind, type, root, operation;
    uint64_t bytes;
} description_t;

typedef struct {
    process_t process;
    volatile uint64_t posted, taken; /* chunks of collectives */
    description_t description[SLOTS];
    volatile int32_t untouched[SLOTS]; /* nothing was ever written to what it posts from here on */
    volatile uint64_t sent[MAX_RANKS], received[MAX_RANKS]; /* chunks to each rank, and from each */
    char data[SLOTS][CHUNK];
    char mail[MAX_RANKS][CHUNK]; /* to each rank */
} rank_t;

typedef struct {
    volatile int32_t joined, aborted;
    rank_t ranks[MAX_RANKS];
} shared_t;

typedef struct {
    shared_t *shared;
    int count, rank, device;
    uint64_t chunks; /* of collectives, so far */
    int splits;
    char name[64];
} communicator_t;

typedef struct {
    char name[128];
} unique_id_t; /* ncclUniqueId */

/* An operation on its way. */
typedef struct {
    communicator_t *communicator;
    description_t what; /* bytes: what each rank posts */
    const char *source;
    char *target;
    void *stream;
    int peer, posted, finished;
    uint64_t done; /* bytes */
} work_t;

static __thread int depth;
static __thread work_t *works;
static __thread int work_count;

/* ---- Communicators. */

static status_t join(communicator_t **made, int count, int rank, const char *name) {
    char path[512], suffix[96];
    if (count > MAX_RANKS) return INVALID_ARGUMENT;
    snprintf(suffix, sizeof suffix, ".nccl-%s", name);
    board_path(path, sizeof path, suffix);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(shared_t))) return SYSTEM_ERROR;
    shared_t *shared = mmap(NULL, sizeof(shared_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (shared == MAP_FAILED) return SYSTEM_ERROR;
    communicator_t *communicator = calloc(1, sizeof *communicator);
    *communicator = (communicator_t){shared, count, rank};
    snprintf(communicator->name, sizeof communicator->name, "%s", name);
    cudaGetDevice(&communicator->device);
    shared->ranks[rank].process = *my_process();
    if (__sync_add_and_fetch(&shared->joined, 1) == count) unlink(path); /* all have it */
    *made = communicator;
    return SUCCESS;
}

status_t standin_ncclGetUniqueId(unique_id_t *id) {
    uint64_t random[2] = {0, 0};
    memset(id, 0, sizeof *id);
    if (getrandom(random, sizeof random, 0) < 0) return SYSTEM_ERROR;
    snprintf(id->name, sizeof id->name, "%016lx%016lx", random[0], random[1]);
    return SUCCESS;
}
status_t standin_ncclCommInitRank(communicator_t **made, int count, unique_id_t id, int rank) {
    return join(made, count, rank, id.name);
}
status_t standin_ncclCommInitRankConfig(communicator_t **made, int count, unique_id_t id, int rank, void *config) {
    return join(made, count, rank, id.name);
}
status_t standin_ncclCommInitRankScalable(communicator_t **made, int count, int rank, int many, unique_id_t *ids, void *config) {
    return join(made, count, rank, ids->name);
}
status_t standin_ncclCommInitAll(communicator_t **made, int count, const int *devices) {
    unique_id_t id;
    status_t status = standin_ncclGetUniqueId(&id);
    for (int i = 0; i < count && !status; i++) {
        status = join(&made[i], count, i, id.name);
        if (!status) made[i]->device = devices ? devices[i] : i;
    }
    return status;
}
status_t standin_ncclCommDestroy(communicator_t *communicator) {
    munmap(communicator->shared, sizeof(shared_t));
    communicator->shared = NULL; /* what is left is small, and may still be asked about */
    return SUCCESS;
}
status_t standin_ncclCommAbort(communicator_t *communicator) {
    if (communicator->shared) communicator->shared->aborted = 1;
    return SUCCESS;
}
status_t standin_ncclCommCount(communicator_t *communicator, int *count) {
    *count = communicator->count;
    return SUCCESS;
}
status_t standin_ncclCommUserRank(communicator_t *communicator, int *rank) {
    *rank = communicator->rank;
    return SUCCESS;
}
status_t standin_ncclCommCuDevice(communicator_t *communicator, int *device) {
    *device = communicator->device;
    return SUCCESS;
}
status_t standin_ncclCommGetAsyncError(communicator_t *communicator, int *error) {
    *error = SUCCESS;
    return SUCCESS;
}
status_t standin_ncclGetVersion(int *version) {
    *version = 22809;
    return SUCCESS;
}
const char *standin_ncclGetErrorString(status_t status) {
    switch (status) {
    case SUCCESS: return "no error";
    case SYSTEM_ERROR: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case INVALID_ARGUMENT: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    }
    return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
}
const char *standin_ncclGetLastError(communicator_t *communicator) { return ""; }
status_t standin_ncclMemAlloc(void **pointer, size_t bytes) { return cudaMalloc(pointer, bytes); }
status_t standin_ncclMemFree(void *pointer) { return cudaFree(pointer); }

/* ---- Numbers. */

static size_t bytes_of(int type) { /* ncclDataType_t */
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 1;
}

static double number_at(const char *place, int type) {
    uint32_t bits;
    float single;
    switch (type) {
    case 0: return *(const int8_t *)place;
    case 1: return *(const uint8_t *)place;
    case 2: return *(const int32_t *)place;
    case 3: return *(const uint32_t *)place;
    case 4: return *(const int64_t *)place;
    case 5: return *(const uint64_t *)place;
    case 6: return *(const _Float16 *)place;
    case 7: return *(const float *)place;
    case 8: return *(const double *)place;
    case 9: /* bfloat16: the upper half of a float */
        bits = (uint32_t) * (const uint16_t *)place << 16;
        memcpy(&single, &bits, 4);
        return single;
    }
    return *(const uint8_t *)place;
}

static void put_number(char *place, int type, double number) {
    uint32_t bits;
    float single = number;
    switch (type) {
    case 0: *(int8_t *)place = number; return;
    case 2: *(int32_t *)place = number; return;
    case 3: *(uint32_t *)place = number; return;
    case 4: *(int64_t *)place = number; return;
    case 5: *(uint64_t *)place = number; return;
    case 6: *(_Float16 *)place = number; return;
    case 7: *(float *)place = number; return;
    case 8: *(double *)place = number; return;
    case 9:
        memcpy(&bits, &single, 4);
        *(uint16_t *)place = bits >> 16;
        return;
    }
    *(uint8_t *)place = number;
}

static int is_zero(const char *place, size_t bytes) { return !bytes || (!*place && !memcmp(place, place + 1, bytes - 1)); }

/* What all ranks hold at a place of a chunk, combined into `result`. */
static void combine(communicator_t *communicator, int slot, const description_t *what, size_t begin, size_t bytes,
                    char *result) {
    const rank_t *ranks = communicator->shared->ranks;
    int zero = 1;
    for (int r = 0; r < communicator->count; r++) zero &= is_zero(ranks[r].data[slot] + begin, bytes);
    memset(result, 0, bytes);
    if (zero) return;
    size_t width = bytes_of(what->type);
    for (size_t at = 0; at + width <= bytes; at += width) {
        double total = number_at(ranks[0].data[slot] + begin + at, what->type);
        for (int r = 1; r < communicator->count; r++) {
            double number = number_at(ranks[r].data[slot] + begin + at, what->type);
            switch (what->operation) { /* ncclRedOp_t */
            case 1: total *= number; break;
            case 2: total = number > total ? number : total; break;
            case 3: total = number < total ? number : total; break;
            default: total += number;
            }
        }
        put_number(result + at, what->type, what->operation == 4 ? total / communicator->count : total);
    }
}

/* ---- Moving data. */

static void deliver(work_t *work, size_t place, const char *data, size_t bytes) {
    if (is_zero(data, bytes)) /* pages that hold nothing stay that way */
        cudaMemsetAsync(work->target + place, 0, bytes, work->stream);
    else
        cudaMemcpyAsync(work->target + place, data, bytes, COPY_DEFAULT, work->stream);
}

/* Takes what this rank gets out of a chunk, which covers [begin, begin + bytes) of what each rank posts. */
static void take_chunk(work_t *work, int slot, size_t begin, size_t bytes) {
    static __thread char result[CHUNK];
    communicator_t *communicator = work->communicator;
    const rank_t *ranks = communicator->shared->ranks;
    const description_t *what = &work->what;
    int me = communicator->rank;
    size_t share = what->bytes / communicator->count, first = me * share;
    size_t low = begin > first ? begin : first, high = begin + bytes < first + share ? begin + bytes : first + share;
    switch (what->kind) {
    case BROADCAST: deliver(work, begin, ranks[what->root].data[slot], bytes); break;
    case ALL_GATHER:
        for (int r = 0; r < communicator->count; r++) deliver(work, r * what->bytes + begin, ranks[r].data[slot], bytes);
        break;
    case REDUCE:
        if (me != what->root) break;
    case ALL_REDUCE:
        combine(communicator, slot, what, 0, bytes, result);
        deliver(work, begin, result, bytes);
        break;
    case REDUCE_SCATTER: /* of what is posted this rank gets its share */
        if (low >= high) break;
        combine(communicator, slot, what, low - begin, high - low, result);
        deliver(work, low - first, result, high - low);
        break;
    case ALL_TO_ALL:
        for (int r = 0; r < communicator->count && low < high; r++)
            deliver(work, r * share + low - first, ranks[r].data[slot] + (low - begin), high - low);
        break;
    }
}

/* Ends a collective to which no rank brings anything but memory that was never written, as gradients that no kernel has
 * computed: gigabytes of it take no time. */
static void take_nothing(work_t *work) {
    const description_t *what = &work->what;
    int count = work->communicator->count;
    size_t bytes = what->bytes;
    if (what->kind == ALL_GATHER) bytes *= count;
    if (what->kind == REDUCE_SCATTER) bytes /= count;
    if (what->kind == REDUCE && what->root != work->communicator->rank) bytes = 0;
    cudaMemsetAsync(work->target, 0, bytes, work->stream);
    work->done = what->bytes;
}

/* Goes on with a collective as far as the other ranks let it. Returns an error or IN_PROGRESS, or SUCCESS at its end. */
static status_t step_collective(work_t *work) {
    communicator_t *communicator = work->communicator;
    rank_t *ranks = communicator->shared->ranks, *mine = &ranks[communicator->rank];
    int slot = communicator->chunks % SLOTS;
    size_t left = work->what.bytes - work->done, bytes = left < CHUNK ? left : CHUNK;
    if (!work->posted) {
        for (int r = 0; r < communicator->count; r++)
            if (ranks[r].taken + SLOTS <= communicator->chunks) return IN_PROGRESS; /* it still reads the slot */
        int posts = work->what.kind != BROADCAST || work->what.root == communicator->rank;
        mine->untouched[slot] = !posts || cuda_standin_is_untouched(work->source + work->done, left);
        if (posts && !mine->untouched[slot])
            cudaMemcpyAsync(mine->data[slot], work->source + work->done, bytes, COPY_DEFAULT, work->stream);
        else
            memset(mine->data[slot], 0, bytes);
        mine->description[slot] = work->what;
        __sync_synchronize();
        mine->posted = communicator->chunks + 1;
        work->posted = 1;
    }
    for (int r = 0; r < communicator->count; r++)
        if (ranks[r].posted <= communicator->chunks) return IN_PROGRESS;
    __sync_synchronize();
    for (int r = 0; r < communicator->count; r++)
        if (memcmp(&ranks[r].description[slot], &work->what, sizeof work->what)) return INVALID_ARGUMENT;
    int untouched = 1;
    for (int r = 0; r < communicator->count; r++) untouched &= ranks[r].untouched[slot];
    if (untouched && !work->done) {
        take_nothing(work);
    } else {
        take_chunk(work, slot, work->done, bytes);
        work->done += bytes;
    }
    __sync_synchronize();
    mine->taken = ++communicator->chunks;
    work->posted = 0;
    return work->done < work->what.bytes ? IN_PROGRESS : SUCCESS;
}

static status_t step_message(work_t *work) {
    communicator_t *communicator = work->communicator;
    int sends = work->what.kind == SEND;
    int from = sends ? communicator->rank : work->peer, to = sends ? work->peer : communicator->rank;
    rank_t *sender = &communicator->shared->ranks[from], *receiver = &communicator->shared->ranks[to];
    size_t left = work->what.bytes - work->done, bytes = left < CHUNK ? left : CHUNK;
    if (sends) {
        if (sender->sent[to] != receiver->received[from]) return IN_PROGRESS; /* the last one has not been fetched */
        cudaMemcpyAsync(sender->mail[to], work->source + work->done, bytes, COPY_DEFAULT, work->stream);
        __sync_synchronize();
        sender->sent[to]++;
    } else {
        if (sender->sent[to] == receiver->received[from]) return IN_PROGRESS;
        __sync_synchronize();
        deliver(work, work->done, sender->mail[to], bytes);
        receiver->received[from]++;
    }
    work->done += bytes;
    return work->done < work->what.bytes ? IN_PROGRESS : SUCCESS;
}

static status_t check_peers(const communicator_t *communicator) {
    if (communicator->shared->aborted) return REMOTE_ERROR;
    for (int r = 0; r < communicator->count; r++) {
        const process_t *process = &communicator->shared->ranks[r].process;
        if (process->pid && !is_alive(process)) return REMOTE_ERROR;
    }
    return SUCCESS;
}

/* Whether a work must wait for an earlier one: collectives of a communicator, and messages of a pair, keep their order. */
static int must_wait(int index) {
    const work_t *work = &works[index];
    int collective = work->what.kind < SEND;
    for (int i = 0; i < index; i++) {
        const work_t *other = &works[i];
        if (other->finished || other->communicator != work->communicator) continue;
        if (collective ? other->what.kind < SEND : other->what.kind == work->what.kind && other->peer == work->peer) return 1;
    }
    return 0;
}

/* Does all that a group has gathered. */
static status_t finish(void) {
    status_t status = SUCCESS;
    int left = work_count;
    for (unsigned rounds = 1; left && !status; rounds++) {
        int before = left;
        for (int i = 0; i < work_count && !status; i++) {
            work_t *work = &works[i];
            if (work->finished || must_wait(i)) continue;
            uint64_t done = work->done;
            status_t step = work->what.kind < SEND ? step_collective(work) : step_message(work);
            if (step == SUCCESS) work->finished = 1, left--;
            if (step == IN_PROGRESS && work->done != done) before = -1; /* it moved */
            if (step != IN_PROGRESS) status = step;
        }
        if (left && left == before && !status) {
            usleep(50);
            if (rounds % 64 == 0)
                for (int i = 0; i < work_count && !status; i++) status = check_peers(works[i].communicator);
        }
    }
    work_count = 0;
    return status;
}

static status_t begin(work_t work) {
    if (!work.communicator->shared) return INVALID_ARGUMENT;
    int captured = 0;
    cudaStreamIsCapturing(work.stream, &captured);
    if (captured) return SUCCESS;
    works = realloc(works, (work_count + 1) * sizeof *works);
    works[work_count++] = work;
    return depth ? SUCCESS : finish();
}

status_t standin_ncclGroupStart(void) {
    depth++;
    return SUCCESS;
}
status_t standin_ncclGroupEnd(void) {
    if (depth && --depth) return SUCCESS;
    return finish();
}

static status_t collective(enum kind kind, const void *source, void *target, size_t count, int type, int operation, int root,
                           communicator_t *communicator, void *stream) {
    description_t what = {kind, type, root, operation, count * bytes_of(type)};
    return begin((work_t){communicator, what, source, target, stream});
}
status_t standin_ncclAllReduce(const void *source, void *target, size_t count, int type, int operation,
                               communicator_t *communicator, void *stream) {
    return collective(ALL_REDUCE, source, target, count, type, operation, 0, communicator, stream);
}
status_t standin_ncclReduce(const void *source, void *target, size_t count, int type, int operation, int root,
                            communicator_t *communicator, void *stream) {
    return collective(REDUCE, source, target, count, type, operation, root, communicator, stream);
}
status_t standin_ncclBroadcast(const void *source, void *target, size_t count, int type, int root,
                               communicator_t *communicator, void *stream) {
    return collective(BROADCAST, source, target, count, type, 0, root, communicator, stream);
}
status_t standin_ncclBcast(void *data, size_t count, int type, int root, communicator_t *communicator, void *stream) {
    return collective(BROADCAST, data, data, count, type, 0, root, communicator, stream);
}
status_t standin_ncclAllGather(const void *source, void *target, size_t count, int type, communicator_t *communicator,
                               void *stream) {
    return collective(ALL_GATHER, source, target, count, type, 0, 0, communicator, stream);
}
status_t standin_ncclReduceScatter(const void *source, void *target, size_t count, int type, int operation,
                                   communicator_t *communicator, void *stream) {
    return collective(REDUCE_SCATTER, source, target, count * communicator->count, type, operation, 0, communicator, stream);
}
status_t standin_ncclAlltoAll(const void *source, void *target, size_t count, int type, communicator_t *communicator,
                              void *stream) {
    return collective(ALL_TO_ALL, source, target, count * communicator->count, type, 0, 0, communicator, stream);
}
status_t standin_ncclSend(const void *source, size_t count, int type, int peer, communicator_t *communicator, void *stream) {
    description_t what = {SEND, type, 0, 0, count * bytes_of(type)};
    return begin((work_t){communicator, what, source, NULL, stream, peer});
}
status_t standin_ncclRecv(void *target, size_t count, int type, int peer, communicator_t *communicator, void *stream) {
    description_t what = {RECEIVE, type, 0, 0, count * bytes_of(type)};
    return begin((work_t){communicator, what, NULL, target, stream, peer});
}

/* Ranks of one colour make a communicator of their own, ordered by key. */
status_t standin_ncclCommSplit(communicator_t *communicator, int color, int key, communicator_t **made, void *config) {
    int mine[2] = {color, key}, all[MAX_RANKS][2], count = 0, rank = 0;
    int group = depth;
    depth = 0; /* the colours are needed now */
    status_t status = standin_ncclAllGather(mine, all, sizeof mine, 0, communicator, NULL);
    depth = group;
    if (status) return status;
    int number = communicator->splits++;
    *made = NULL;
    if (color < 0) return SUCCESS; /* NCCL_SPLIT_NOCOLOR */
    for (int r = 0; r < communicator->count; r++) {
        if (all[r][0] != color) continue;
        count++;
        rank += all[r][1] < key || (all[r][1] == key && r < communicator->rank);
    }
    char name[64];
    snprintf(name, sizeof name, "%.32s-%d-%d", communicator->name, number, color);
    return join(made, count, rank, name);
}
