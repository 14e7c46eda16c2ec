/* The card that the machine's devices are: by compute capability, each figure can be set. */
#pragma once

#include <stdint.h>

typedef struct {
    int major, minor;
    const char *name;
    uint64_t memory; /* bytes */
    int multiprocessors;
    int shared_per_multiprocessor, shared_per_block_optin; /* bytes; a block gets 48 KiB without asking */
    int l2; /* bytes */
    int threads_per_multiprocessor, blocks_per_multiprocessor;
    int bus_bits, clock_khz, memory_clock_khz;
} card_t;

/* The card of this machine, from CUDA_STANDIN_CC, _NAME, _SMS and _MEMORY. */
const card_t *card(void);

/* How many devices the machine has: CUDA_STANDIN_DEVICES, two unless told. */
int device_count(void);

/* A device's UUID, the same for CUDA and NVML. */
void device_uuid(int device, unsigned char uuid[16]);

/* Where a device sits on the PCI bus, the same for CUDA and NVML. */
int pci_bus(int device);

/* CUDA's version that the driver claims, 13000 for 13.0: CUDA_STANDIN_DRIVER. */
int driver_version(void);

/* A setting in bytes: "24G", "500M", "1.5G" or a plain number. */
uint64_t bytes_setting(const char *variable, uint64_t otherwise);

/* A whole number that is set. */
long number_setting(const char *variable, long otherwise);
