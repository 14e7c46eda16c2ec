#include "cards.h"

#include "board.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ull << 30)
#define KIB 1024
#define MIB (KIB * 1024)

/* Limits by capability: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
 * Multiprocessors, L2, bus, memory and clocks: NVIDIA's datasheets and architecture papers of these cards. */
static const card_t cards[] = {
    {7, 5, "Tesla T4", 16 * GIB, 40, 64 * KIB, 64 * KIB, 4 * MIB, 1024, 16, 256, 1590000, 5001000},
    {8, 0, "NVIDIA A100-SXM4-80GB", 80 * GIB, 108, 164 * KIB, 163 * KIB, 40 * MIB, 2048, 32, 5120, 1410000, 1593000},
    {8, 6, "NVIDIA GeForce RTX 3090", 24 * GIB, 82, 100 * KIB, 99 * KIB, 6 * MIB, 1536, 16, 384, 1695000, 9751000},
    {8, 9, "NVIDIA GeForce RTX 4090", 24 * GIB, 128, 100 * KIB, 99 * KIB, 72 * MIB, 1536, 24, 384, 2520000, 10501000},
    {9, 0, "NVIDIA H100 80GB HBM3", 80 * GIB, 132, 228 * KIB, 227 * KIB, 50 * MIB, 2048, 32, 5120, 1980000, 2619000},
    {10, 0, "NVIDIA B200", 180 * GIB, 148, 228 * KIB, 227 * KIB, 126 * MIB, 2048, 32, 8192, 1965000, 3996000},
    {12, 0, "NVIDIA GeForce RTX 5090", 32 * GIB, 170, 100 * KIB, 99 * KIB, 96 * MIB, 1536, 24, 512, 2407000, 14001000},
};

static card_t chosen;
static char name[128];

uint64_t bytes_setting(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    if (!text || !*text) return otherwise;
    char *unit;
    double number = strtod(text, &unit);
    return (uint64_t)(number * (*unit == 'G' ? 0x1p30 : *unit == 'M' ? 0x1p20 : *unit == 'K' ? 0x1p10 : 1.0));
}

long number_setting(const char *variable, long otherwise) {
    const char *text = getenv(variable);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static void choose(void) {
    const char *text = getenv("CUDA_STANDIN_CC"); /* "8.0" or "80" */
    int major = 8, minor = 0;
    if (text && strchr(text, '.'))
        sscanf(text, "%d.%d", &major, &minor);
    else if (text && *text)
        major = atoi(text) / 10, minor = atoi(text) % 10;
    chosen = cards[1];
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (cards[i].major < major || (cards[i].major == major && cards[i].minor <= minor)) chosen = cards[i];
    chosen.major = major, chosen.minor = minor;
    const char *own = getenv("CUDA_STANDIN_NAME");
    /* It says what it is, so that no figure from it passes for one of the card. */
    snprintf(name, sizeof name, own && *own ? "%s" : "%s (stand-in)", own && *own ? own : chosen.name);
    chosen.name = name;
    chosen.multiprocessors = number_setting("CUDA_STANDIN_SMS", chosen.multiprocessors);
    chosen.memory = bytes_setting("CUDA_STANDIN_MEMORY", chosen.memory);
}

const card_t *card(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return &chosen;
}

int device_count(void) {
    long count = number_setting("CUDA_STANDIN_DEVICES", 2);
    return count < 0 ? 0 : count > MAX_DEVICES ? MAX_DEVICES : count;
}

void device_uuid(int device, unsigned char uuid[16]) {
    memset(uuid, 0, 16);
    memset(uuid, 0xaa, 4);
    uuid[15] = device;
}

int pci_bus(int device) { return 0x21 + device; }

int driver_version(void) { return number_setting("CUDA_STANDIN_DRIVER", 13000); }
