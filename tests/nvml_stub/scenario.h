/* What the stub plays, and reading it from a file of one `key=value` a line, as build.py writes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 16, FAULTS = 64, POINTS = 64, PROCESSES = 16, XIDS = 64 };
enum { ANY = -1 };

typedef unsigned long long ull;
typedef struct { double from; ull used; } point;
typedef struct { unsigned pid; ull used; int graphics; } process;

typedef struct {
    char uuid[96], pci[32], name[96];
    ull total, reserved;
    point points[POINTS];
    int point_count;
    process processes[PROCESSES];
    int process_count;
    unsigned utilisation, memory_utilisation, temperature, power_mw, sm_mhz, memory_mhz, clock_reasons, ecc_errors;
    unsigned generation, width, max_generation, max_width, throughput_kb, cores;
    unsigned mig, instance, slices, profile_mib;
    int parent;
    int capability_major, capability_minor;
    int counters, counter_type;
    double counter_base, receive_rate, send_rate, counter_modulus;
    unsigned xids[XIDS], xid_count, links, links_down, link_errors, errors_of_all_links;
    double link_rate;
} gpu;

typedef struct { int gpu; char function[80]; char kind; int code; double from, to; } fault;

typedef struct {
    double epoch;
    char driver[80];
    int cuda, count, order[GPUS], ordered, fault_count;
    gpu gpus[GPUS];
    fault faults[FAULTS];
} scenario;

static void set_points(gpu *g, char *text) {
    char *rest = NULL;
    g->point_count = 0;
    for (char *word = strtok_r(text, " ", &rest); word && g->point_count < POINTS; word = strtok_r(NULL, " ", &rest)) {
        point *p = &g->points[g->point_count++];
        sscanf(word, "%lf:%llu", &p->from, &p->used);
    }
}

static void set_processes(gpu *g, char *text) {
    char *rest = NULL;
    g->process_count = 0;
    for (char *word = strtok_r(text, " ", &rest); word && g->process_count < PROCESSES; word = strtok_r(NULL, " ", &rest)) {
        process *p = &g->processes[g->process_count++];
        char used[32] = "na", kind = 'C';
        sscanf(word, "%u:%31[^:]:%c", &p->pid, used, &kind);
        p->used = strcmp(used, "na") ? strtoull(used, NULL, 10) : ~0ULL;
        p->graphics = kind == 'G';
    }
}

static void set_xids(gpu *g, char *text) {
    char *rest = NULL;
    g->xid_count = 0;
    for (char *word = strtok_r(text, " ", &rest); word && g->xid_count < XIDS; word = strtok_r(NULL, " ", &rest))
        g->xids[g->xid_count++] = (unsigned)atoi(word);
}

static void set_gpu(gpu *g, const char *key, char *value) {
    struct { const char *key; char *text; size_t size; } texts[] = {
        {"uuid", g->uuid, sizeof g->uuid}, {"pci", g->pci, sizeof g->pci}, {"name", g->name, sizeof g->name}};
    struct { const char *key; ull *number; } sizes[] = {{"total", &g->total}, {"reserved", &g->reserved}};
    struct { const char *key; unsigned *number; } units[] = {
        {"utilisation", &g->utilisation}, {"memory_utilisation", &g->memory_utilisation},
        {"temperature", &g->temperature}, {"power_mw", &g->power_mw}, {"clock_reasons", &g->clock_reasons}, {"ecc_errors", &g->ecc_errors}, {"sm_mhz", &g->sm_mhz},
        {"memory_mhz", &g->memory_mhz}, {"generation", &g->generation}, {"width", &g->width},
        {"max_generation", &g->max_generation}, {"max_width", &g->max_width}, {"throughput_kb", &g->throughput_kb},
        {"cores", &g->cores}, {"mig", &g->mig}, {"instance", &g->instance}, {"slices", &g->slices},
        {"profile_mib", &g->profile_mib}, {"links", &g->links}, {"links_down", &g->links_down},
        {"link_errors", &g->link_errors}, {"errors_of_all_links", &g->errors_of_all_links}};
    struct { const char *key; double *number; } reals[] = {
        {"counter_base", &g->counter_base}, {"receive_rate", &g->receive_rate}, {"send_rate", &g->send_rate},
        {"counter_modulus", &g->counter_modulus}, {"link_rate", &g->link_rate}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(key, texts[i].key)) snprintf(texts[i].text, texts[i].size, "%s", value);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(key, sizes[i].key)) *sizes[i].number = strtoull(value, NULL, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(key, units[i].key)) *units[i].number = (unsigned)strtoul(value, NULL, 10);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!strcmp(key, reals[i].key)) *reals[i].number = strtod(value, NULL);
    if (!strcmp(key, "used")) set_points(g, value);
    if (!strcmp(key, "processes")) set_processes(g, value);
    if (!strcmp(key, "xids")) set_xids(g, value);
    if (!strcmp(key, "capability")) sscanf(value, "%d.%d", &g->capability_major, &g->capability_minor);
    if (!strcmp(key, "parent")) g->parent = atoi(value);
    if (!strcmp(key, "counters")) g->counters = atoi(value);
    if (!strcmp(key, "counter_type")) g->counter_type = atoi(value);
}

static void add_fault(scenario *s, char *value) {
    if (s->fault_count == FAULTS) return;
    fault *f = &s->faults[s->fault_count++];
    char which[16] = "*", to[32] = "inf", kind[16] = "code";
    sscanf(value, "%15s %79s %15s %d %lf %31s", which, f->function, kind, &f->code, &f->from, to);
    f->gpu = strcmp(which, "*") ? atoi(which) : ANY;
    f->kind = kind[0];
    f->to = strtod(to, NULL);
}

static void parse(scenario *s, FILE *file, double epoch) {
    char line[8192];
    memset(s, 0, sizeof *s);
    s->epoch = epoch;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = 0;
        int which, at = 0;
        if (!strcmp(line, "epoch")) s->epoch = strtod(value, NULL);
        else if (!strcmp(line, "driver")) snprintf(s->driver, sizeof s->driver, "%s", value);
        else if (!strcmp(line, "cuda")) s->cuda = atoi(value);
        else if (!strcmp(line, "gpus")) s->count = atoi(value);
        else if (!strcmp(line, "fault")) add_fault(s, value);
        else if (!strcmp(line, "order")) {
            char *rest = NULL;
            for (char *word = strtok_r(value, " ", &rest); word && s->ordered < GPUS; word = strtok_r(NULL, " ", &rest))
                s->order[s->ordered++] = atoi(word);
        } else if (sscanf(line, "gpu.%d.%n", &which, &at) == 1 && at && which >= 0 && which < GPUS)
            set_gpu(&s->gpus[which], line + at, value);
    }
}
