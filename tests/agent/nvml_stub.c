/* A stand-in for libnvidia-ml.so.1 with the few calls that the agent makes: NVML_STUB_GPUS GPUs, of which the one numbered
   NVML_STUB_LOST has fallen off the bus; NVML_STUB_INIT is what initialising returns (9: the driver is not loaded).
   Build: gcc -shared -fPIC -o libnvidia-ml.so.1 nvml_stub.c */
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, GPU_IS_LOST = 15 };
typedef struct device { int index; } *device_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static struct device devices[16];

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return number("NVML_STUB_INIT", SUCCESS); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("NVML_STUB_GPUS", 0); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if ((int)index >= number("NVML_STUB_GPUS", 0)) return INVALID_ARGUMENT;
    devices[index].index = (int)index;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetName(device_t device, char *text, unsigned length) {
    (void)device;
    snprintf(text, length, "NVIDIA Stub 40GB");
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t device, char *text, unsigned length) {
    if (device->index == number("NVML_STUB_LOST", -1)) return GPU_IS_LOST;
    snprintf(text, length, "GPU-%08d", device->index);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory) {
    (void)device;
    memory->total = 40ull << 30;
    memory->used = 0;
    memory->free = memory->total;
    return SUCCESS;
}
