/* A stand-in for libnvidia-ml.so.1 that answers from a scenario file, which is read anew whenever it changes.
 *
 * Names, codes and structures follow nvml.h as nvidia-ml-py declares them. The file is that of scenario.h.
 * Handles die as on a real driver: with their GPU, and with the library's last shutdown.
 * Passing a dead one on is what crashes real programs; here it is counted (`nvml_stub_misuse`).
 */
#define _GNU_SOURCE
#include <math.h>
#include <stddef.h>
#include <strings.h>

#include "state.h"

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = enter("nvmlInit", ANY);
    if (code) return code;
    pthread_mutex_lock(&lock);
    int there = path[0] && !access(path, R_OK);
    if (there) initialised++;
    pthread_mutex_unlock(&lock);
    return there ? SUCCESS : DRIVER_NOT_LOADED;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int was = initialised;
    if (was > 0) initialised--;
    if (was == 1) sessions++;
    if (was == 1)
        for (int i = 0; i <= handle_count; i++) handles[i].dead = 1;
    pthread_mutex_unlock(&lock);
    return was > 0 ? SUCCESS : UNINITIALIZED;
}

const char *nvmlErrorString(int code) {
    static const struct { int code; const char *text; } texts[] = {
        {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
        {4, "Insufficient Permissions"}, {6, "Not Found"}, {9, "Driver Not Loaded"}, {13, "Function Not Found"},
        {15, "GPU is lost"}, {18, "Driver/library version mismatch"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code) return texts[i].text;
    return "Unknown Error";
}

static int text_out(const char *text, char *out, unsigned size) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int code = enter_library("nvmlSystemGetDriverVersion");
    return code ? code : text_out(now_playing.driver, out, size);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    char text[96];
    snprintf(text, sizeof text, "13.%s", now_playing.driver);
    int code = enter("nvmlSystemGetNVMLVersion", ANY);
    return code ? code : text_out(text, out, size);
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    int code = enter_library("nvmlSystemGetCudaDriverVersion");
    *version = now_playing.cuda;
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter_library("nvmlDeviceGetCount_v2");
    *count = now_playing.count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle **device) {
    if (!initialised) return UNINITIALIZED;
    pthread_mutex_lock(&lock);
    int which = (int)index < now_playing.ordered ? now_playing.order[index] : (int)index;
    int known = (int)index < now_playing.count;
    pthread_mutex_unlock(&lock);
    return known ? give_handle("nvmlDeviceGetHandleByIndex_v2", which, device) : INVALID_ARGUMENT;
}

static int handle_by(const char *function, size_t field, const char *text, handle **device) {
    if (!initialised) return UNINITIALIZED;
    int found = ANY;
    pthread_mutex_lock(&lock);
    refresh();
    for (int i = 0; i < GPUS; i++)
        if (text[0] && !strcasecmp((char *)&now_playing.gpus[i] + field, text)) found = i;
    pthread_mutex_unlock(&lock);
    return found == ANY ? NOT_FOUND : give_handle(function, found, device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle **device) {
    return handle_by("nvmlDeviceGetHandleByUUID", offsetof(gpu, uuid), uuid, device);
}

/* Domains of four and of eight digits are both in use. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, handle **device) {
    char full[48];
    snprintf(full, sizeof full, "%s%s", strlen(pci) == 12 ? "0000" : "", pci);
    return handle_by("nvmlDeviceGetHandleByPciBusId_v2", offsetof(gpu, pci), full, device);
}

int nvmlDeviceGetIndex(handle *device, unsigned *index) {
    gpu g;
    int code = enter_device("nvmlDeviceGetIndex", device, &g);
    *index = device->gpu;
    for (int i = 0; i < now_playing.ordered; i++)
        if (now_playing.order[i] == device->gpu) *index = i;
    return code;
}

#define TEXT(function, field) \
    int function(handle *device, char *out, unsigned size) { \
        gpu g; \
        int code = enter_device(#function, device, &g); \
        return code ? code : text_out(g.field, out, size); \
    }
TEXT(nvmlDeviceGetUUID, uuid)
TEXT(nvmlDeviceGetName, name)

#define NUMBER(function, expression) \
    int function(handle *device, unsigned *out) { \
        gpu g; \
        int code = enter_device(#function, device, &g); \
        *out = (expression); \
        return code; \
    }
NUMBER(nvmlDeviceGetPowerUsage, g.power_mw)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, g.generation)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, g.width)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, g.max_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, g.max_width)

int nvmlDeviceGetPciInfo_v3(handle *device, void *out) {
    struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } *info = out;
    gpu g;
    int code = enter_device("nvmlDeviceGetPciInfo_v3", device, &g);
    if (code) return code;
    memset(info, 0, sizeof *info);
    sscanf(g.pci, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->legacy, sizeof info->legacy, "%.15s", g.pci + 4);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", g.pci);
    return SUCCESS;
}

static ull used_now(const gpu *g) {
    ull used = 0;
    double at = elapsed();
    for (int i = 0; i < g->point_count && g->points[i].from <= at; i++) used = g->points[i].used;
    return used;
}

int nvmlDeviceGetMemoryInfo(handle *device, ull out[3]) {
    gpu g;
    int code = enter_device("nvmlDeviceGetMemoryInfo", device, &g);
    ull used = used_now(&g) + g.reserved;
    out[0] = g.total, out[1] = g.total - used, out[2] = used;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(handle *device, void *out) {
    struct { unsigned version; ull total, reserved, free, used; } *info = out;
    gpu g;
    int code = enter_device("nvmlDeviceGetMemoryInfo_v2", device, &g);
    if (code) return code;
    if (info->version != 0x02000028) return ARGUMENT_VERSION_MISMATCH;
    info->total = g.total, info->reserved = g.reserved, info->used = used_now(&g);
    info->free = g.total - g.reserved - info->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(handle *device, unsigned out[2]) {
    gpu g;
    int code = enter_device("nvmlDeviceGetUtilizationRates", device, &g);
    out[0] = g.utilisation, out[1] = g.memory_utilisation;
    return code;
}

int nvmlDeviceGetTemperature(handle *device, unsigned sensor, unsigned *out) {
    gpu g;
    (void)sensor;
    int code = enter_device("nvmlDeviceGetTemperature", device, &g);
    *out = g.temperature;
    return code;
}

int nvmlDeviceGetTemperatureV(handle *device, void *out) {
    struct { unsigned version, sensor; int temperature; } *info = out;
    gpu g;
    int code = enter_device("nvmlDeviceGetTemperatureV", device, &g);
    info->temperature = (int)g.temperature;
    return code;
}

int nvmlDeviceGetClockInfo(handle *device, unsigned kind, unsigned *out) {
    gpu g;
    int code = enter_device("nvmlDeviceGetClockInfo", device, &g);
    *out = kind == 2 ? g.memory_mhz : g.sm_mhz;
    return code ? code : *out ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrentClocksEventReasons(handle *device, ull *out) {
    gpu g;
    int code = enter_device("nvmlDeviceGetCurrentClocksEventReasons", device, &g);
    *out = g.clock_reasons;
    return code;
}

int nvmlDeviceGetTotalEccErrors(handle *device, unsigned kind, unsigned counter, ull *out) {
    gpu g;
    (void)kind, (void)counter;
    int code = enter_device("nvmlDeviceGetTotalEccErrors", device, &g);
    *out = g.ecc_errors;
    return code;
}

int nvmlDeviceGetTotalEnergyConsumption(handle *device, ull *out) {
    gpu g;
    int code = enter_device("nvmlDeviceGetTotalEnergyConsumption", device, &g);
    *out = (ull)(g.power_mw * elapsed());
    return code;
}

int nvmlDeviceGetPcieThroughput(handle *device, unsigned counter, unsigned *out) {
    gpu g;
    (void)counter;
    int code = enter_device("nvmlDeviceGetPcieThroughput", device, &g);
    *out = g.throughput_kb;
    return code;
}

int nvmlDeviceGetCudaComputeCapability(handle *device, int *major, int *minor) {
    gpu g;
    int code = enter_device("nvmlDeviceGetCudaComputeCapability", device, &g);
    *major = g.capability_major, *minor = g.capability_minor;
    return code;
}

int nvmlDeviceGetNumGpuCores(handle *device, unsigned *out) {
    gpu g;
    int code = enter_device("nvmlDeviceGetNumGpuCores", device, &g);
    *out = g.cores;
    return code;
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    unsigned type;
    int answer;
    union { double real; unsigned narrow; ull wide; } value;
} field_value;

/* Fields of NVLinks: throughput of all (138 sent, 139 received, KiB), errors of all (38, 45, 52, 59) or of a link (161 to 163). */
static int link_field(const gpu *g, field_value *value) {
    unsigned field = value->field;
    int throughput = field == 138 || field == 139, of_all = field == 38 || field == 45 || field == 52 || field == 59;
    int of_link = field >= 161 && field <= 163;
    if (!throughput && !of_all && !of_link) return 0;
    int known = throughput ? value->scope == ~0u : of_all ? g->errors_of_all_links : !g->errors_of_all_links && value->scope < g->links;
    value->answer = g->links && known ? SUCCESS : NOT_SUPPORTED;
    value->type = 3;
    value->value.wide = throughput ? (ull)(g->link_rate * (field == 139 ? 1 : 0.5) * elapsed())
                        : field == 38 || field == 163 ? g->link_errors : 0;
    return 1;
}

int nvmlDeviceGetFieldValues(handle *device, int count, field_value *values) {
    gpu g;
    int code = enter_device("nvmlDeviceGetFieldValues", device, &g);
    if (code) return code;
    for (int i = 0; i < count; i++) {
        if (link_field(&g, &values[i])) continue;
        int sent = values[i].field == 197, received = values[i].field == 198;
        values[i].answer = g.counters && (sent || received) ? SUCCESS : NOT_SUPPORTED;
        if (values[i].answer) continue;
        double bytes = g.counter_base + (sent ? g.send_rate : g.receive_rate) * elapsed();
        if (g.counter_modulus > 0) bytes = fmod(bytes, g.counter_modulus);
        values[i].type = (unsigned)g.counter_type;
        values[i].value.wide = (ull)bytes;
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(handle *device, unsigned link, unsigned *active) {
    gpu g;
    int code = enter_device("nvmlDeviceGetNvLinkState", device, &g);
    if (code) return code;
    if (!g.links) return NOT_SUPPORTED;
    if (link >= g.links) return INVALID_ARGUMENT;
    *active = link >= g.links_down;
    return SUCCESS;
}

/* A queue of one GPU's XID errors: those that the scenario had when it registered are behind it. */
typedef struct { int gpu, session; unsigned given; } event_set;
typedef struct { handle *device; ull type, data; unsigned instance, compute; } event_data;
enum { EVENT_SETS = 4096, XID_CRITICAL = 8 };
static event_set event_sets[EVENT_SETS];
static int event_set_count;

int nvmlEventSetCreate(event_set **set) {
    int code = enter_library("nvmlEventSetCreate");
    if (code) return code;
    pthread_mutex_lock(&lock);
    *set = event_set_count < EVENT_SETS ? &event_sets[event_set_count++] : NULL;
    pthread_mutex_unlock(&lock);
    if (!*set) return UNKNOWN;
    (*set)->gpu = ANY;
    (*set)->session = sessions;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(handle *device, ull types, event_set *set) {
    gpu g;
    int code = enter_device("nvmlDeviceRegisterEvents", device, &g);
    if (code) return code;
    if (types != XID_CRITICAL) return INVALID_ARGUMENT;
    set->gpu = device->gpu;
    set->given = g.xid_count;
    return SUCCESS;
}

int nvmlEventSetWait_v2(event_set *set, event_data *data, unsigned timeout_ms) {
    if (set->session != sessions) misuse++;
    int code = enter("nvmlEventSetWait_v2", set->gpu);
    if (code) return code;
    gpu *g = &now_playing.gpus[set->gpu];
    if (set->given >= g->xid_count) {
        nap(timeout_ms * 1e-3);
        return TIMEOUT;
    }
    memset(data, 0, sizeof *data);
    data->type = XID_CRITICAL;
    data->data = g->xids[set->given++];
    return SUCCESS;
}

int nvmlEventSetFree(event_set *set) {
    if (set->session != sessions) misuse++;
    int code = enter_library("nvmlEventSetFree");
    set->session = 0;
    return code;
}

typedef struct { unsigned pid; ull used; unsigned instance, compute; } process_info;

static int list(const char *function, handle *device, unsigned *count, process_info *out, int graphics) {
    gpu g;
    unsigned found = 0;
    int code = enter_device(function, device, &g);
    if (code) return code;
    for (int i = 0; i < g.process_count; i++) {
        if (g.processes[i].graphics != graphics) continue;
        if (found < *count && out) {
            process_info one = {g.processes[i].pid, g.processes[i].used, ~0u, ~0u};
            out[found] = one;
        }
        found++;
    }
    code = found > *count || (found && !out) ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return code;
}

#define LIST(function, graphics) \
    int function(handle *device, unsigned *count, process_info *out) { return list(#function, device, count, out, graphics); }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)

/* MIG: an instance is a GPU of the scenario behind the whole ones. */
int nvmlDeviceGetMigMode(handle *device, unsigned *current, unsigned *pending) {
    gpu g;
    int code = enter_device("nvmlDeviceGetMigMode", device, &g);
    *current = *pending = g.mig;
    return code ? code : g.mig ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(handle *device, unsigned *count) {
    gpu g;
    int code = enter_device("nvmlDeviceGetMaxMigDeviceCount", device, &g);
    *count = 7;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle *device, unsigned index, handle **part) {
    gpu g;
    int found = ANY, code = enter_device("nvmlDeviceGetMigDeviceHandleByIndex", device, &g);
    if (code) return code;
    pthread_mutex_lock(&lock);
    for (int i = now_playing.count; i < GPUS; i++) {
        gpu *one = &now_playing.gpus[i];
        if (one->uuid[0] && one->parent == device->gpu && one->instance == index) found = i;
    }
    pthread_mutex_unlock(&lock);
    return found == ANY ? NOT_FOUND : give_handle("nvmlDeviceGetMigDeviceHandleByIndex", found, part);
}

int nvmlDeviceGetAttributes_v2(handle *device, void *out) {
    struct { unsigned multiprocessors, copies, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; ull mib; } *told = out;
    gpu g;
    int code = enter_device("nvmlDeviceGetAttributes_v2", device, &g);
    if (code) return code;
    memset(told, 0, sizeof *told);
    told->multiprocessors = g.cores;
    told->gpu_slices = told->compute_slices = g.slices;
    told->mib = g.profile_mib;
    return g.parent >= 0 ? SUCCESS : NOT_SUPPORTED;
}

/* What other monitors ask besides. */
#define REFUSED(function) \
    int function(handle *device) { \
        gpu g; \
        int code = enter_device(#function, device, &g); \
        return code ? code : NOT_SUPPORTED; \
    }
REFUSED(nvmlDeviceGetComputeMode)
REFUSED(nvmlDeviceGetConfComputeMemSizeInfo)
REFUSED(nvmlDeviceGetDecoderUtilization)
REFUSED(nvmlDeviceGetDisplayActive)
REFUSED(nvmlDeviceGetDisplayMode)
REFUSED(nvmlDeviceGetDriverModel)
REFUSED(nvmlDeviceGetDriverModel_v2)
REFUSED(nvmlDeviceGetEncoderUtilization)
REFUSED(nvmlDeviceGetFanSpeed)
REFUSED(nvmlDeviceGetMaxClockInfo)
REFUSED(nvmlDeviceGetMPSComputeRunningProcesses_v3)
REFUSED(nvmlDeviceGetPerformanceState)
REFUSED(nvmlDeviceGetPersistenceMode)
REFUSED(nvmlDeviceGetPowerManagementLimit)
REFUSED(nvmlDeviceGetProcessUtilization)
