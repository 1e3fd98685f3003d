/* A stand-in for libnvidia-ml.so.1 that plays the server which the text file named by NVML_SERVER describes. One fact a line:

     gpu INDEX NODE        a GPU, in order of index, and its NUMA node
     level A B LEVEL       the closest common ancestor of two GPUs, as nvmlGpuTopologyLevel_t (default: 50, the system)
     nvlink A B LINKS      direct NVLinks between two GPUs
     nvswitch A LINKS      NVLinks from a GPU to NVSwitches
     off A                 NVLinks of this GPU, one for each such line, that are there but not active; they come first
     lost A                a GPU that has fallen off the bus
     mute CALLS            calls that this driver does not support: levels, nodes, links or kinds
     init CODE             what initialising returns (9: the driver is not loaded)

   Build: gcc -shared -fPIC -o libnvidia-ml.so.1 fake_nvml.c */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { KIND_GPU = 0, KIND_SWITCH = 2 };

typedef struct device { int index; } *device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} pci_t;

static struct {
    int count, init, node[MOST], lost[MOST], off[MOST], to_switch[MOST], level[MOST][MOST], links[MOST][MOST];
    char mute[64];
} server;
static struct device devices[MOST];

static int read_server(void) {
    char line[128], word[32];
    int a, b, n;
    const char *path = getenv("NVML_SERVER");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return UNKNOWN;
    memset(&server, 0, sizeof server);
    for (a = 0; a < MOST; a++)
        for (b = 0; b < MOST; b++) server.level[a][b] = a == b ? 0 : 50;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "gpu %d %d", &a, &n) == 2) server.count = a + 1, server.node[a] = n;
        else if (sscanf(line, "level %d %d %d", &a, &b, &n) == 3) server.level[a][b] = server.level[b][a] = n;
        else if (sscanf(line, "nvlink %d %d %d", &a, &b, &n) == 3) server.links[a][b] = server.links[b][a] = n;
        else if (sscanf(line, "nvswitch %d %d", &a, &n) == 2) server.to_switch[a] = n;
        else if (sscanf(line, "off %d", &a) == 1) server.off[a]++;
        else if (sscanf(line, "lost %d", &a) == 1) server.lost[a] = 1;
        else if (sscanf(line, "init %d", &n) == 1) server.init = n;
        else if (sscanf(line, "mute %31s", word) == 1) strcat(strcat(server.mute, word), " ");
    }
    fclose(file);
    return server.init;
}

static int ask(device_t device, const char *calls) {
    if (!device || device->index >= server.count) return INVALID_ARGUMENT;
    if (server.lost[device->index]) return GPU_IS_LOST;
    return strstr(server.mute, calls) ? NOT_SUPPORTED : SUCCESS;
}

static void fill_pci(int bus, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)bus;
    snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", bus);
}

/* What is at the end of a link: a GPU, 100 for a switch, -1 for a link that is off, -2 for no such link. */
static int end_of(int gpu, int link) {
    int other;
    if (link < server.off[gpu]) return -1;
    link -= server.off[gpu];
    for (other = 0; other < server.count; other++) {
        if (link < server.links[gpu][other]) return other;
        link -= server.links[gpu][other];
    }
    return link < server.to_switch[gpu] ? 100 : -2;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return read_server(); }
int nvmlInit_v2(void) { return read_server(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    return code == GPU_IS_LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : "an error";
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)server.count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if ((int)index >= server.count) return INVALID_ARGUMENT;
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
    int code = ask(device, "?");
    if (code == SUCCESS) snprintf(text, length, "GPU-%08d", device->index);
    return code;
}

int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory) {
    int code = ask(device, "?");
    memory->total = memory->free = 40ull << 30;
    memory->used = 0;
    return code;
}

int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *pci) {
    int code = ask(device, "?");
    if (code == SUCCESS) fill_pci(0x10 + device->index, pci);
    return code;
}

int nvmlDeviceGetTopologyCommonAncestor(device_t a, device_t b, int *level) {
    int code = ask(a, "levels");
    if (code == SUCCESS) code = ask(b, "levels");
    if (code == SUCCESS) *level = server.level[a->index][b->index];
    return code;
}

int nvmlDeviceGetMemoryAffinity(device_t device, unsigned words, unsigned long *mask, int scope) {
    int code = ask(device, "nodes");
    (void)scope;
    if (code != SUCCESS) return code;
    memset(mask, 0, words * sizeof *mask);
    mask[server.node[device->index] / 64] = 1ul << (server.node[device->index] % 64);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device_t device, unsigned link, int *active) {
    int code = ask(device, "links");
    if (code != SUCCESS) return code;
    if (end_of(device->index, 0) == -2) return NOT_SUPPORTED;
    if (end_of(device->index, (int)link) == -2) return INVALID_ARGUMENT;
    *active = end_of(device->index, (int)link) >= 0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device_t device, unsigned link, int *kind) {
    int code = ask(device, "kinds");
    if (code == SUCCESS) *kind = end_of(device->index, (int)link) == 100 ? KIND_SWITCH : KIND_GPU;
    return code;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t device, unsigned link, pci_t *pci) {
    int code = ask(device, "links");
    if (code == SUCCESS) fill_pci(0x10 + end_of(device->index, (int)link), pci);
    return code;
}
