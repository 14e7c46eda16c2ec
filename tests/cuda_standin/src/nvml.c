/* libnvidia-ml: the devices of the CUDA stand-in, with the memory that processes have there and the same UUIDs. */
#include "board.h"
#include "cards.h"
#include "gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

typedef int status_t;
typedef struct {
    int number;
} device_t;
static device_t devices[MAX_DEVICES];

int library_state(const char *function) { return 0; } /* NVML needs no context */
void library_struck(const char *function, int code, int sticky) {}

static status_t state_of(const device_t *device) { return board()->lost[device->number] ? GPU_IS_LOST : SUCCESS; }

status_t standin_nvmlInit_v2(void) {
    for (int i = 0; i < MAX_DEVICES; i++) devices[i].number = i;
    return device_count() ? SUCCESS : DRIVER_NOT_LOADED;
}
status_t standin_nvmlInit(void) { return standin_nvmlInit_v2(); }
status_t standin_nvmlInitWithFlags(unsigned flags) { return standin_nvmlInit_v2(); }
status_t standin_nvmlShutdown(void) { return SUCCESS; }

const char *standin_nvmlErrorString(status_t status) {
    switch (status) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    }
    return "Unknown Error";
}

status_t standin_nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "580.00.00");
    return SUCCESS;
}
status_t standin_nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    snprintf(text, length, "13.580.00.00");
    return SUCCESS;
}
status_t standin_nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = driver_version();
    return SUCCESS;
}
status_t standin_nvmlSystemGetCudaDriverVersion(int *version) { return standin_nvmlSystemGetCudaDriverVersion_v2(version); }

/* ---- Devices. */

status_t standin_nvmlDeviceGetCount_v2(unsigned *count) {
    *count = device_count();
    return SUCCESS;
}
status_t standin_nvmlDeviceGetCount(unsigned *count) { return standin_nvmlDeviceGetCount_v2(count); }
status_t standin_nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **device) {
    if (index >= (unsigned)device_count()) return INVALID_ARGUMENT;
    *device = &devices[index];
    return state_of(*device);
}
status_t standin_nvmlDeviceGetIndex(const device_t *device, unsigned *index) {
    *index = device->number;
    return SUCCESS;
}
status_t standin_nvmlDeviceGetName(const device_t *device, char *text, unsigned length) {
    snprintf(text, length, "%s", card()->name);
    return state_of(device);
}
static void uuid_text(int device, char *text, size_t length) {
    unsigned char u[16];
    device_uuid(device, u);
    snprintf(text, length, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
             u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}
status_t standin_nvmlDeviceGetUUID(const device_t *device, char *text, unsigned length) {
    uuid_text(device->number, text, length);
    return state_of(device);
}
status_t standin_nvmlDeviceGetHandleByUUID(const char *wanted, device_t **device) {
    for (int i = 0; i < device_count(); i++) {
        char text[48];
        uuid_text(i, text, sizeof text);
        if (strcmp(text, wanted) == 0) return standin_nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return NOT_FOUND;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t; /* nvmlPciInfo_t */

status_t standin_nvmlDeviceGetPciInfo_v3(const device_t *device, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = pci_bus(device->number);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02x:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return state_of(device);
}
status_t standin_nvmlDeviceGetHandleByPciBusId_v2(const char *text, device_t **device) {
    const char *bus = strchr(text, ':');
    return bus ? standin_nvmlDeviceGetHandleByIndex_v2(strtol(bus + 1, NULL, 16) - pci_bus(0), device) : INVALID_ARGUMENT;
}
status_t standin_nvmlDeviceGetCudaComputeCapability(const device_t *device, int *major, int *minor) {
    *major = card()->major, *minor = card()->minor;
    return state_of(device);
}

/* 64 to a multiprocessor up to capability 8.0, 128 later: CUDA C++ Programming Guide, "Arithmetic Instructions". */
status_t standin_nvmlDeviceGetNumGpuCores(const device_t *device, unsigned *cores) {
    *cores = card()->multiprocessors * (10 * card()->major + card()->minor <= 80 ? 64 : 128);
    return state_of(device);
}

/* ---- Memory. */

typedef struct {
    unsigned long long total, free, used;
} memory_t;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

status_t standin_nvmlDeviceGetMemoryInfo(const device_t *device, memory_t *memory) {
    uint64_t total = card()->memory, used = used_by_all(device->number);
    *memory = (memory_t){total, total - used, used};
    return state_of(device);
}
status_t standin_nvmlDeviceGetMemoryInfo_v2(const device_t *device, memory_v2_t *memory) {
    if (memory->version != (sizeof *memory | 2 << 24)) return ARGUMENT_VERSION_MISMATCH;
    uint64_t total = card()->memory, used = used_by_all(device->number);
    *memory = (memory_v2_t){memory->version, total, 0, total - used, used};
    return state_of(device);
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
} entry_t; /* nvmlProcessInfo_t */
typedef struct {
    unsigned pid;
    unsigned long long memory;
} entry_v1_t;

/* The processes with memory on a device; how many there are, of which at most `room` are written. */
static unsigned processes_on(int device, entry_t *entries, unsigned room) {
    unsigned found = 0;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const process_t *process = &board()->processes[i];
        if (!process->used[device] || !is_alive(process)) continue;
        if (found < room && entries) entries[found] = (entry_t){process->pid, process->used[device], ~0u, ~0u};
        found++;
    }
    return found;
}
status_t standin_nvmlDeviceGetComputeRunningProcesses_v3(const device_t *device, unsigned *count, entry_t *entries) {
    unsigned room = *count;
    *count = processes_on(device->number, entries, room);
    return state_of(device) ? GPU_IS_LOST : *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
status_t standin_nvmlDeviceGetComputeRunningProcesses_v2(const device_t *device, unsigned *count, entry_t *entries) {
    return standin_nvmlDeviceGetComputeRunningProcesses_v3(device, count, entries);
}
status_t standin_nvmlDeviceGetComputeRunningProcesses(const device_t *device, unsigned *count, entry_v1_t *entries) {
    entry_t all[MAX_PROCESSES];
    unsigned room = *count;
    *count = processes_on(device->number, all, MAX_PROCESSES);
    for (unsigned i = 0; i < *count && i < room && entries; i++) entries[i] = (entry_v1_t){all[i].pid, all[i].memory};
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
status_t standin_nvmlDeviceGetGraphicsRunningProcesses_v3(const device_t *device, unsigned *count, entry_t *entries) {
    *count = 0;
    return state_of(device);
}

/* ---- Sensors: plausible figures that stay as they are, but for energy, which is power over time. */

enum { MILLIWATTS = 71000 };

status_t standin_nvmlDeviceGetUtilizationRates(const device_t *device, unsigned rates[2]) {
    rates[0] = 50, rates[1] = 10;
    return state_of(device);
}
status_t standin_nvmlDeviceGetTemperature(const device_t *device, int sensor, unsigned *degrees) {
    *degrees = 40 + device->number;
    return state_of(device);
}
status_t standin_nvmlDeviceGetPowerUsage(const device_t *device, unsigned *milliwatts) {
    *milliwatts = MILLIWATTS;
    return state_of(device);
}
status_t standin_nvmlDeviceGetTotalEnergyConsumption(const device_t *device, unsigned long long *millijoules) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = (unsigned long long)((now.tv_sec + now.tv_nsec * 1e-9) * MILLIWATTS);
    return state_of(device);
}
status_t standin_nvmlDeviceGetClockInfo(const device_t *device, int type, unsigned *mhz) {
    *mhz = card()->clock_khz / 1000;
    return state_of(device);
}
status_t standin_nvmlDeviceGetPcieThroughput(const device_t *device, int counter, unsigned *kib_per_second) {
    *kib_per_second = 1000;
    return state_of(device);
}
status_t standin_nvmlDeviceGetCurrPcieLinkGeneration(const device_t *device, unsigned *value) {
    *value = 4;
    return state_of(device);
}
status_t standin_nvmlDeviceGetMaxPcieLinkGeneration(const device_t *device, unsigned *value) {
    *value = 4;
    return state_of(device);
}
status_t standin_nvmlDeviceGetCurrPcieLinkWidth(const device_t *device, unsigned *value) {
    *value = 16;
    return state_of(device);
}
status_t standin_nvmlDeviceGetMaxPcieLinkWidth(const device_t *device, unsigned *value) {
    *value = 16;
    return state_of(device);
}

/* ---- What this machine does not have, and torch or the program ask for. */

status_t standin_nvmlDeviceGetNvLinkRemoteDeviceType(const device_t *device, unsigned link, int *type) { return NOT_SUPPORTED; }
status_t standin_nvmlDeviceGetNvLinkRemotePciInfo_v2(const device_t *device, unsigned link, pci_t *pci) { return NOT_SUPPORTED; }
/* There is no fabric: torch has set the state to "not supported", and it stays that. */
status_t standin_nvmlDeviceGetGpuFabricInfoV(const device_t *device, void *info) { return SUCCESS; }
status_t standin_nvmlDeviceGetTemperatureV(const device_t *device, void *reading) { return NOT_SUPPORTED; }
status_t standin_nvmlDeviceGetFieldValues(const device_t *device, int count, void *values) { return NOT_SUPPORTED; }
