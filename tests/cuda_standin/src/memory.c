/* Memory is real: an allocation has an address of its own, counts against the device's capacity over all processes,
 * keeps what is copied there, and can be opened by another process. Pages that nobody writes cost nothing. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE (2ull << 20) /* the driver gives memory in pages of 2 MiB */
#define PAGES(bytes) (((bytes) + PAGE - 1) / PAGE * PAGE)
#define CHUNK (32ull << 20)
#define WINDOW 0x020000000000ull /* 2 TiB of addresses for each device */

enum kind { DEVICE, IMPORTED, MAPPED, HOST, REGISTERED };

/* Memory that a device gave: what cuMemCreate returns. It has no address until it is mapped. */
typedef struct {
    size_t bytes;
    int device, references;
    off_t place; /* in the device's file */
} chunk_t;

typedef struct {
    uintptr_t address;
    size_t bytes, charged;
    int device;
    enum kind kind;
    off_t place;
    chunk_t *chunk; /* of MAPPED */
} block_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block_t *blocks; /* by address */
static size_t count, room;

/* ---- The memory of a device: one sparse file without a name a process, so that another can open it. */

static int file_of(int device) {
    static int files[MAX_DEVICES];
    if (!files[device]) {
        int file = memfd_create("cuda_standin", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, (off_t)1 << 46) == 0) files[device] = file;
    }
    return files[device];
}

static off_t unmapped_place(size_t bytes) { /* behind the window of addresses that cudaMalloc uses */
    static off_t next = WINDOW;
    off_t place = next;
    next += PAGES(bytes);
    return place;
}

static void forget(int device, off_t place, size_t bytes) {
    fallocate(file_of(device), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place, PAGES(bytes));
}

static int take(int device, size_t bytes) {
    int card_number = physical(device);
    if (used_by_all(card_number) + bytes > card()->memory) return 0;
    __sync_add_and_fetch(&my_process()->used[card_number], bytes);
    return 1;
}

static void give_back(int device, size_t bytes) {
    __sync_sub_and_fetch(&my_process()->used[physical(device)], bytes);
}

int contexts;

status_t context(int device) {
    process_t *process = my_process();
    int number = physical(device);
    if (process->context[number]) return SUCCESS;
    pthread_mutex_lock(&lock);
    status_t status = SUCCESS;
    if (!process->context[number]) {
        if (take(device, bytes_setting("CUDA_STANDIN_CONTEXT", 500ull << 20)))
            process->context[number] = 1, contexts++;
        else
            status = OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- Blocks by address. */

static size_t after(uintptr_t address) { /* the first block that begins beyond it */
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static block_t *block_at(uintptr_t address) {
    size_t index = after(address);
    if (!index) return NULL;
    block_t *block = &blocks[index - 1];
    return address < block->address + (block->bytes ? block->bytes : 1) ? block : NULL;
}

static void add(block_t block) {
    if (count == room) blocks = realloc(blocks, (room = room ? 2 * room : 256) * sizeof(block_t));
    size_t index = after(block.address);
    memmove(blocks + index + 1, blocks + index, (count - index) * sizeof(block_t));
    blocks[index] = block;
    count++;
}

static void take_out(block_t *block) {
    size_t index = block - blocks;
    memmove(block, block + 1, (count - index - 1) * sizeof(block_t));
    count--;
}

static uintptr_t window(int device) { return 0x200000000000ull + device * WINDOW; }

/* As the driver places: in the lowest gap of what it has begun, or else below it, in multiples of 32 MiB. */
static uintptr_t first_gap(int device, size_t bytes) {
    static uintptr_t lowest[MAX_DEVICES];
    uintptr_t end = window(device + 1), address = lowest[device] ? lowest[device] : end;
    for (size_t i = after(address - 1); i < count && blocks[i].address < end; i++) {
        if (blocks[i].address - address >= bytes) return address;
        address = blocks[i].address + PAGES(blocks[i].bytes);
    }
    if (end - address >= bytes) return address;
    lowest[device] = (lowest[device] ? lowest[device] : end) - (bytes + CHUNK - 1) / CHUNK * CHUNK;
    return lowest[device];
}

/* Maps a place of a file of device memory at the first free address. */
static void *place_in_window(int device, int file, off_t place, size_t bytes, uintptr_t address) {
    return mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, file,
                place < 0 ? (off_t)(address - window(device)) : place);
}

status_t standin_cudaMalloc(void **pointer, size_t bytes) {
    *pointer = NULL;
    if (!bytes) return SUCCESS;
    if (context(current_device)) return noted(OUT_OF_MEMORY);
    size_t full = PAGES(bytes);
    status_t status = OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    if (take(current_device, full)) {
        uintptr_t address = first_gap(current_device, full);
        *pointer = place_in_window(current_device, file_of(current_device), -1, full, address);
        if (*pointer == MAP_FAILED) {
            give_back(current_device, full);
            *pointer = NULL;
        } else {
            off_t place = address - window(current_device);
            add((block_t){address, bytes, full, current_device, DEVICE, place});
            status = SUCCESS;
        }
    }
    pthread_mutex_unlock(&lock);
    return noted(status);
}

status_t standin_cudaFree(void *pointer) {
    if (!pointer) return noted(context(current_device)); /* the usual way to make a context */
    status_t status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    block_t *block = block_at((uintptr_t)pointer);
    if (block && block->kind == DEVICE && block->address == (uintptr_t)pointer) {
        munmap(pointer, block->charged);
        forget(block->device, block->place, block->charged);
        give_back(block->device, block->charged);
        take_out(block);
        status = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    if (status == SUCCESS) wait_for_all(current_device); /* cudaFree waits for the device */
    return noted(status);
}

status_t standin_cudaMallocAsync(void **pointer, size_t bytes, stream_handle stream) {
    return standin_cudaMalloc(pointer, bytes);
}
status_t standin_cudaFreeAsync(void *pointer, stream_handle stream) { return standin_cudaFree(pointer); }
status_t standin_cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    return standin_cudaMalloc(pointer, bytes);
}

/* torch has no call of it; bitsandbytes brings paged states with it. */
status_t standin_cudaMemPrefetchAsync(void) { return SUCCESS; }

/* ---- The host's memory. */

status_t standin_cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    if (context(current_device)) return noted(OUT_OF_MEMORY);
    void *found = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return noted(OUT_OF_MEMORY);
    pthread_mutex_lock(&lock);
    add((block_t){(uintptr_t)found, bytes, 0, current_device, HOST});
    pthread_mutex_unlock(&lock);
    *pointer = found;
    return SUCCESS;
}
status_t standin_cudaMallocHost(void **pointer, size_t bytes) { return standin_cudaHostAlloc(pointer, bytes, 0); }

status_t standin_cudaFreeHost(void *pointer) {
    if (!pointer) return SUCCESS;
    status_t status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    block_t *block = block_at((uintptr_t)pointer);
    if (block && block->kind == HOST) {
        munmap(pointer, block->bytes ? block->bytes : 1);
        take_out(block);
        status = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return noted(status);
}

status_t standin_cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    status_t status = context(current_device);
    pthread_mutex_lock(&lock);
    if (status == SUCCESS && block_at((uintptr_t)pointer)) status = ALREADY_REGISTERED;
    if (status == SUCCESS) add((block_t){(uintptr_t)pointer, bytes, 0, current_device, REGISTERED});
    pthread_mutex_unlock(&lock);
    return noted(status);
}

status_t standin_cudaHostUnregister(void *pointer) {
    status_t status = NOT_REGISTERED;
    pthread_mutex_lock(&lock);
    block_t *block = block_at((uintptr_t)pointer);
    if (block && block->kind == REGISTERED) take_out(block), status = SUCCESS;
    pthread_mutex_unlock(&lock);
    return noted(status);
}

status_t standin_cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    *device = host;
    return SUCCESS;
}

/* cudaPointerAttributes of CUDA 13. */
typedef struct {
    int type, device; /* type: 0 unregistered, 1 host, 2 device */
    void *device_pointer, *host_pointer;
    long reserved[8];
} pointer_attributes_t;

status_t standin_cudaPointerGetAttributes(pointer_attributes_t *found, const void *pointer) {
    memset(found, 0, sizeof *found);
    found->device = -2; /* cudaInvalidDeviceId */
    pthread_mutex_lock(&lock);
    block_t *block = block_at((uintptr_t)pointer);
    if (block) {
        int of_host = block->kind == HOST || block->kind == REGISTERED;
        *found = (pointer_attributes_t){of_host ? 1 : 2, block->device, (void *)pointer, of_host ? (void *)pointer : NULL};
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

status_t standin_cudaMemGetInfo(size_t *free, size_t *total) {
    status_t status = context(current_device);
    if (status) return noted(status);
    uint64_t used = used_by_all(physical(current_device));
    *total = card()->memory;
    *free = *total > used ? *total - used : 0;
    return SUCCESS;
}

/* ---- Copies. No kernel writes anything, so a number that the program reads back must not be one that an earlier owner
 * of the memory left: a size of 4 billion. A small read is of what was copied to just there, or anywhere around it since
 * the last kernel; every other byte of it is zero. */

enum { SMALL = 4096, REMEMBERED = 4096 };

static struct {
    uintptr_t address;
    size_t bytes;
    uint64_t launches;
} writes[REMEMBERED];
static size_t written;

static void remember(uintptr_t address, size_t bytes) {
    pthread_mutex_lock(&lock);
    size_t at = written++ % REMEMBERED;
    writes[at].address = address, writes[at].bytes = bytes, writes[at].launches = launches;
    pthread_mutex_unlock(&lock);
}

/* Reads at most SMALL bytes of a device, of each what the last copy to it has left. */
static void read_small(char *target, uintptr_t source, size_t bytes) {
    char found[SMALL] = {0}, settled[SMALL] = {0};
    pthread_mutex_lock(&lock);
    for (size_t back = 1, left = bytes; left && back <= REMEMBERED && back <= written; back++) {
        size_t at = (written - back) % REMEMBERED;
        uintptr_t begin = writes[at].address, end = begin + writes[at].bytes;
        if (source + bytes <= begin || end <= source) continue;
        int inside = source <= begin && end <= source + bytes;
        int known = inside || writes[at].launches == launches;
        size_t first = begin > source ? begin - source : 0, last = end < source + bytes ? end - source : bytes;
        for (size_t i = first; i < last; i++) {
            if (settled[i]) continue;
            settled[i] = 1, left--;
            if (known) found[i] = ((const char *)source)[i];
        }
    }
    pthread_mutex_unlock(&lock);
    memcpy(target, found, bytes);
}

static size_t most_copied(void) { /* copies beyond it are not made; they would only take time */
    static size_t most;
    return most ? most : (most = bytes_setting("CUDA_STANDIN_COPY_MAX", 1ull << 30));
}

/* The part of a range that lies in one block of device memory; its block, or NULL outside of it. */
static size_t part(uintptr_t address, size_t bytes, block_t *found) {
    pthread_mutex_lock(&lock);
    block_t *block = block_at(address);
    size_t length = bytes;
    found->kind = HOST;
    if (block) {
        *found = *block;
        uintptr_t end = block->address + block->bytes;
        if (end - address < length) length = end - address;
    }
    pthread_mutex_unlock(&lock);
    return length;
}

static int on_device(const block_t *block) { return block->kind <= MAPPED; }

static int is_untouched(const block_t *block, uintptr_t address, size_t bytes) {
    if (block->kind == IMPORTED || !on_device(block)) return 0;
    off_t begin = block->place + (address - block->address);
    off_t data = lseek(file_of(block->device), begin, SEEK_DATA);
    return data < 0 ? errno == ENXIO : data >= begin + (off_t)bytes;
}

/* For NCCL: whether nothing has ever been written to a range, so that it need not be read. */
__attribute__((visibility("default"))) int cuda_standin_is_untouched(uintptr_t address, size_t bytes) {
    while (bytes) {
        block_t block;
        size_t length = part(address, bytes, &block);
        if (!is_untouched(&block, address, length)) return 0;
        address += length, bytes -= length;
    }
    return 1;
}

static int is_zero(const char *place, size_t bytes) { return !bytes || (!*place && !memcmp(place, place + 1, bytes - 1)); }

void zero(uintptr_t target, size_t bytes) {
    while (bytes) {
        block_t block;
        size_t length = part(target, bytes, &block);
        uintptr_t begin = (target + 4095) & ~4095ull, end = (target + length) & ~4095ull;
        if (is_untouched(&block, target, length)) {
            /* it is, and stays without pages */
        } else if (on_device(&block) && block.kind != IMPORTED && begin < end) { /* whole pages are given up */
            fallocate(file_of(block.device), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      block.place + (begin - block.address), end - begin);
            memset((void *)target, 0, begin - target);
            memset((void *)end, 0, target + length - end);
        } else {
            memset((void *)target, 0, length);
        }
        target += length, bytes -= length;
    }
}

void fill(uintptr_t target, int value, size_t bytes) {
    if (!value)
        zero(target, bytes);
    else if (bytes <= most_copied())
        memset((void *)target, value, bytes);
    remember(target, bytes);
}

void copy(uintptr_t target, uintptr_t source, size_t bytes) {
    if (!bytes || target == source || bytes > most_copied()) return;
    block_t from, to;
    part(source, bytes, &from), part(target, bytes, &to);
    if (!on_device(&from)) {
        memmove((void *)target, (void *)source, bytes);
    } else if (!on_device(&to) && answered((void *)target, bytes)) {
        /* a count that is known */
    } else if (bytes <= SMALL) {
        char found[SMALL];
        read_small(found, source, bytes);
        if (is_zero(found, bytes))
            zero(target, bytes);
        else
            memcpy((void *)target, found, bytes);
    } else {
        for (size_t done = 0; done < bytes;) {
            size_t length = part(source + done, bytes - done, &from);
            if (is_untouched(&from, source + done, length))
                zero(target + done, length); /* a page that is read would be there from then on */
            else
                memmove((void *)(target + done), (void *)(source + done), length);
            done += length;
        }
    }
    if (on_device(&to)) remember(target, bytes);
}

/* ---- Memory of another process. */

typedef struct {
    int pid, file, device;
    off_t place;
    size_t bytes, offset;
    char reserved[64 - 3 * sizeof(int) - 3 * sizeof(size_t) - 4];
} ipc_handle_t; /* 64 bytes, as cudaIpcMemHandle_t */

_Static_assert(sizeof(ipc_handle_t) == 64, "cudaIpcMemHandle_t");

status_t standin_cudaIpcGetMemHandle(ipc_handle_t *handle, void *pointer) {
    status_t status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    block_t *block = block_at((uintptr_t)pointer);
    if (block && block->kind == DEVICE) {
        memset(handle, 0, sizeof *handle);
        *handle = (ipc_handle_t){getpid(), file_of(block->device), physical(block->device), block->place, block->charged};
        status = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return noted(status);
}

status_t standin_cudaIpcOpenMemHandle(void **pointer, ipc_handle_t handle, unsigned flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return noted(INVALID_HANDLE);
    pthread_mutex_lock(&lock);
    uintptr_t address = first_gap(current_device, handle.bytes);
    *pointer = place_in_window(current_device, file, handle.place, handle.bytes, address);
    int made = *pointer != MAP_FAILED;
    if (made) add((block_t){address, handle.bytes, handle.bytes, current_device, IMPORTED, handle.place});
    pthread_mutex_unlock(&lock);
    close(file);
    return noted(made ? SUCCESS : OUT_OF_MEMORY);
}

status_t standin_cudaIpcCloseMemHandle(void *pointer) {
    status_t status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    block_t *block = block_at((uintptr_t)pointer);
    if (block && block->kind == IMPORTED) munmap(pointer, block->charged), take_out(block), status = SUCCESS;
    pthread_mutex_unlock(&lock);
    return noted(status);
}

/* ---- Addresses and memory apart, for expandable segments: the virtual memory management of the driver API. */

typedef struct {
    int type, handle_types;
    struct {
        int type, id;
    } location;
    void *win32;
    unsigned char flags[8];
} allocation_properties_t; /* CUmemAllocationProp */

typedef struct {
    int type, id;
} location_t;

status_t standin_cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) {
    *bytes = PAGE;
    return SUCCESS;
}

status_t standin_cuMemAddressReserve(uintptr_t *address, size_t bytes, size_t alignment, uintptr_t hint, uint64_t flags) {
    static uintptr_t next = 0x600000000000ull;
    pthread_mutex_lock(&lock);
    uintptr_t chosen = next;
    next += PAGES(bytes);
    pthread_mutex_unlock(&lock);
    void *found = mmap((void *)chosen, PAGES(bytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (found == MAP_FAILED) return OUT_OF_MEMORY;
    *address = chosen;
    return SUCCESS;
}

status_t standin_cuMemAddressFree(uintptr_t address, size_t bytes) {
    munmap((void *)address, PAGES(bytes));
    return SUCCESS;
}

status_t standin_cuMemCreate(chunk_t **handle, size_t bytes, const allocation_properties_t *wanted, uint64_t flags) {
    int device = wanted->location.id;
    if (device < 0 || device >= visible_devices()) return INVALID_DEVICE;
    if (context(device)) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    int taken = take(device, bytes);
    off_t place = unmapped_place(bytes);
    pthread_mutex_unlock(&lock);
    if (!taken) return OUT_OF_MEMORY;
    *handle = malloc(sizeof(chunk_t));
    **handle = (chunk_t){bytes, device, 1, place};
    return SUCCESS;
}

static void release(chunk_t *chunk) { /* with the lock taken */
    if (--chunk->references) return;
    forget(chunk->device, chunk->place, chunk->bytes);
    give_back(chunk->device, chunk->bytes);
    free(chunk);
}

status_t standin_cuMemRelease(chunk_t *chunk) {
    pthread_mutex_lock(&lock);
    release(chunk);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

status_t standin_cuMemMap(uintptr_t address, size_t bytes, size_t offset, chunk_t *chunk, uint64_t flags) {
    void *found = mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                       file_of(chunk->device), chunk->place + offset);
    if (found == MAP_FAILED) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    chunk->references++;
    add((block_t){address, bytes, 0, chunk->device, MAPPED, chunk->place + offset, chunk});
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

status_t standin_cuMemUnmap(uintptr_t address, size_t bytes) {
    pthread_mutex_lock(&lock);
    mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    for (size_t i = after(address - 1); i < count && blocks[i].address < address + bytes;) {
        release(blocks[i].chunk);
        take_out(&blocks[i]);
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

status_t standin_cuMemSetAccess(uintptr_t address, size_t bytes, const void *access, size_t many) { return SUCCESS; }
status_t standin_cuMemExportToShareableHandle(void *out, chunk_t *chunk, int type, uint64_t flags) { return NOT_SUPPORTED; }
status_t standin_cuMemImportFromShareableHandle(chunk_t **chunk, void *from, int type) { return NOT_SUPPORTED; }

status_t standin_cuMemRetainAllocationHandle(chunk_t **chunk, void *address) {
    status_t status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    block_t *block = block_at((uintptr_t)address);
    if (block && block->kind == MAPPED) *chunk = block->chunk, block->chunk->references++, status = SUCCESS;
    pthread_mutex_unlock(&lock);
    return status;
}

status_t standin_cuMemGetAllocationPropertiesFromHandle(allocation_properties_t *found, chunk_t *chunk) {
    *found = (allocation_properties_t){.type = 1, .location = {1, chunk->device}}; /* pinned, of a device */
    return SUCCESS;
}

status_t standin_cuMemGetAddressRange_v2(uintptr_t *begin, size_t *bytes, uintptr_t address) {
    status_t status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    block_t *block = block_at(address);
    if (block) {
        if (begin) *begin = block->address;
        if (bytes) *bytes = block->bytes;
        status = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

status_t standin_cuPointerGetAttribute(void *out, int attribute, uintptr_t address) {
    block_t block;
    pthread_mutex_lock(&lock);
    block_t *found = block_at(address);
    if (found) block = *found;
    pthread_mutex_unlock(&lock);
    if (!found) return INVALID_VALUE;
    switch (attribute) { /* CUpointer_attribute */
    case 1: *(void **)out = (void *)(uintptr_t)(0x5000 + block.device); return SUCCESS; /* context */
    case 2: *(unsigned *)out = on_device(&block) ? 2 : 1; return SUCCESS;                /* memory type */
    case 3: case 4: *(uintptr_t *)out = address; return SUCCESS;                         /* device, host pointer */
    case 7: *(unsigned long long *)out = block.address; return SUCCESS;                  /* buffer's number */
    case 9: *(int *)out = block.device; return SUCCESS;
    case 11: *(uintptr_t *)out = block.address; return SUCCESS;
    case 12: *(size_t *)out = block.bytes; return SUCCESS;
    }
    return NOT_SUPPORTED;
}
