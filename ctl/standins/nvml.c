/* A stand-in for the NVIDIA driver's library (libnvidia-ml.so.1) that answers from a text file with a server's description.

   For tests, and for `elasticctl up --gpu-model`: there is no GPU, and no program computes on one. The environment variable
   NVML_SERVER names the file; otherwise it is `server.txt` beside the library. Every call checks the file for changes, so that an
   edit changes the running server: a GPU that falls off the bus, an XID, a foreign process.

   build: gcc -shared -fPIC -O1 -Wall -Wextra -Werror -pthread -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml.c -ldl

   One fact a line, words separated by blanks, later lines win; "#" begins a comment. GPU is a number from 0, or "*" for all.
   A line with an error makes all calls fail, and is printed to stderr. Error numbers are those of nvml.h (15: GPU is lost).

     gpus N                      number of GPUs; stands before all lines about GPUs
     driver VERSION              of the driver
     serial N                    servers with different numbers have GPUs with different UUIDs
     init ERROR                  nvmlInit fails with it: 9 driver not loaded, 18 driver and library do not match
     gpu GPU name TEXT           ...
     gpu GPU uuid TEXT           default: made from `serial` and GPU
     gpu GPU memory BYTES
     gpu GPU cc MAJOR MINOR      compute capability: from 7.0 on there is ECC, from 8.0 on MIG and remapped rows
     gpu GPU path P/P/...        its place, as `readlink /sys/bus/pci/devices/ADDRESS` prints it: host bridge, root port, the two
                                 ends of each PCIe switch, and last the GPU's own address. Common ancestors follow from it
     gpu GPU node N              NUMA node
     gpu GPU cpus LIST           near it: 0-15,64-79
     gpu GPU pcie GENERATION WIDTH
     gpu GPU p2p STATUS          nvmlDeviceGetP2PStatus with all others: 1 the chipset cannot, 2 the GPU cannot. Default: those of
                                 one type can, over NVLink or within a socket
     gpu GPU nvlink PEER COUNT   NVLinks to another GPU. One line is enough for both ends
     gpu GPU nvswitch COUNT      NVLinks to NVSwitches
     gpu GPU nvoff COUNT         NVLinks that are there and not active; they come first
     gpu GPU nvspeed MB_PER_S    of one NVLink in one direction
     gpu GPU mig GI PROFILE BYTES  a MIG instance of it: `gpu 0 mig 1 3g.20gb 20937965568`. With one, MIG mode is on
     gpu GPU divided             MIG mode is on, and there may be no instance
   State that changes:
     gpu GPU util PERCENT | used BYTES | temperature C | power MILLIWATTS | clock MHZ
     gpu GPU throttle MASK       reasons, hexadecimal (nvmlClocksEventReason...): 8 hardware slowdown, 40 hardware thermal
     gpu GPU ecc CORRECTED UNCORRECTED     errors since the driver was loaded
     gpu GPU remapped CORRECTED UNCORRECTED PENDING FAILURE   rows of memory
     gpu GPU retired PENDING     1: pages of memory wait to be retired
     gpu GPU process PID BYTES   a process that computes on it; one line each
     gpu GPU quiet               no process any more
     gpu GPU xid CODE            an event; a line each time it happens
     gpu GPU event TYPE DATA     another event (nvmlEventType...): 1 single-bit ECC, 2 double-bit ECC
     gpu GPU error ERROR         all calls about it fail with this error: 15 fallen off the bus, 0 well again
     gpu GPU fails CALL ERROR    one call fails with this error: gpu 1 fails nvmlDeviceGetMemoryInfo 3
     gpu GPU slow MILLISECONDS   each call about it takes so long
     gpu GPU gone                the driver does not count it, as after a restart without it: those behind it move up
     nic ...                     not for this library: `sysfs.py` reads it

   An event set delivers the events added to the file after a GPU was registered with it, in the order of the file. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, UNKNOWN = 999
};
enum { INTERNAL = 0, SINGLE = 10, MULTIPLE = 20, HOST_BRIDGE = 30, NODE = 40, SYSTEM = 50 };
enum { MAX_GPUS = 32, MAX_MIGS = 7, MAX_PROCESSES = 32, MAX_EVENTS = 256, MAX_FAILING = 8, CPU_WORDS = 16, LINKS = 18 };
enum { POLL_MS = 10 };

typedef unsigned long long Count;
typedef struct { int gpu, mig; } Handle; /* mig: -1 for the GPU itself */
typedef Handle *Device;
typedef struct { char profile[32]; int instance; Count memory; } Mig;
typedef struct { unsigned pid; Count memory; } Process;
typedef struct { char call[64]; int error; } Failing;
typedef struct {
    char name[96], uuid[80], path[512];
    int major, minor, node, generation, width, p2p, nvlink[MAX_GPUS], nvswitch, nvoff, error, slow_ms, gone, divided, retired, remapped[4];
    int migs, processes, failing;
    unsigned nvspeed, util, temperature, power, clock;
    unsigned long cpus[CPU_WORDS];
    Count memory, used, throttle, corrected, uncorrected;
    Mig mig[MAX_MIGS];
    Process process[MAX_PROCESSES];
    Failing fails[MAX_FAILING];
} Gpu;
typedef struct { int gpu; Count type, data; } Happening;
typedef struct {
    int gpus, init, events;
    unsigned serial;
    char driver[80];
    Gpu gpu[MAX_GPUS];
    Happening event[MAX_EVENTS];
} Server;

static Server server;
static Handle handles[MAX_GPUS][MAX_MIGS + 1];
static int initialised, broken;
static struct stat seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------------------------------------------ the description */

static int cpu_list(const char *text, unsigned long *words) {
    int first, last, length;
    memset(words, 0, CPU_WORDS * sizeof *words);
    for (; *text; text += length + (text[length] == ',')) {
        if (sscanf(text, "%d-%d%n", &first, &last, &length) != 2) {
            if (sscanf(text, "%d%n", &first, &length) != 1) return 0;
            last = first;
        }
        for (int cpu = first; cpu <= last; cpu++) {
            if (cpu < 0 || cpu >= CPU_WORDS * 64) return 0;
            words[cpu / 64] |= 1ul << cpu % 64;
        }
    }
    return 1;
}

static void happened(int gpu, Count type, Count data) {
    if (server.events < MAX_EVENTS) server.event[server.events++] = (Happening){gpu, type, data};
}

static int gpu_line(int index, const char *key, const char *rest) {
    Gpu *gpu = &server.gpu[index];
    int a, b;
    Count count, more;
#define IS(word) (!strcmp(key, word))
#define READ(wanted, ...) (sscanf(rest, __VA_ARGS__) == (wanted))
    if (IS("name")) return snprintf(gpu->name, sizeof gpu->name, "%s", rest) > 0;
    if (IS("uuid")) return snprintf(gpu->uuid, sizeof gpu->uuid, "%s", rest) > 0;
    if (IS("path")) return snprintf(gpu->path, sizeof gpu->path, "%s", rest) > 0;
    if (IS("memory")) return READ(1, "%llu", &gpu->memory);
    if (IS("cc")) return READ(2, "%d %d", &gpu->major, &gpu->minor);
    if (IS("node")) return READ(1, "%d", &gpu->node);
    if (IS("cpus")) return cpu_list(rest, gpu->cpus);
    if (IS("pcie")) return READ(2, "%d %d", &gpu->generation, &gpu->width);
    if (IS("p2p")) return READ(1, "%d", &gpu->p2p);
    if (IS("nvlink")) {
        if (!READ(2, "%d %d", &a, &b) || a < 0 || a >= server.gpus || a == index) return 0;
        server.gpu[a].nvlink[index] = gpu->nvlink[a] = b;
        return 1;
    }
    if (IS("nvswitch")) return READ(1, "%d", &gpu->nvswitch);
    if (IS("nvoff")) return READ(1, "%d", &gpu->nvoff);
    if (IS("nvspeed")) return READ(1, "%u", &gpu->nvspeed);
    if (IS("mig")) {
        Mig *mig = &gpu->mig[gpu->migs];
        return gpu->migs < MAX_MIGS && READ(3, "%d %31s %llu", &mig->instance, mig->profile, &mig->memory) && ++gpu->migs;
    }
    if (IS("divided")) return (gpu->divided = 1);
    if (IS("util")) return READ(1, "%u", &gpu->util);
    if (IS("used")) return READ(1, "%llu", &gpu->used);
    if (IS("temperature")) return READ(1, "%u", &gpu->temperature);
    if (IS("power")) return READ(1, "%u", &gpu->power);
    if (IS("clock")) return READ(1, "%u", &gpu->clock);
    if (IS("throttle")) return READ(1, "%llx", &gpu->throttle);
    if (IS("ecc")) return READ(2, "%llu %llu", &gpu->corrected, &gpu->uncorrected);
    if (IS("remapped")) {
        int *row = gpu->remapped;
        return READ(4, "%d %d %d %d", &row[0], &row[1], &row[2], &row[3]);
    }
    if (IS("retired")) return READ(1, "%d", &gpu->retired);
    if (IS("process")) {
        Process *process = &gpu->process[gpu->processes];
        return gpu->processes < MAX_PROCESSES && READ(2, "%u %llu", &process->pid, &process->memory) && ++gpu->processes;
    }
    if (IS("quiet")) return (gpu->processes = 0, 1);
    if (IS("xid")) return READ(1, "%llu", &count) && (happened(index, 8, count), 1);
    if (IS("event")) return READ(2, "%llu %llu", &count, &more) && (happened(index, count, more), 1);
    if (IS("error")) return READ(1, "%d", &gpu->error);
    if (IS("fails")) {
        Failing *failing = &gpu->fails[gpu->failing];
        return gpu->failing < MAX_FAILING && READ(2, "%63s %d", failing->call, &failing->error) && ++gpu->failing;
    }
    if (IS("slow")) return READ(1, "%d", &gpu->slow_ms);
    if (IS("gone")) return (gpu->gone = 1);
    return 0;
}

static int server_line(const char *line) {
    char key[32], which[8];
    int number, used = 0;
    if (sscanf(line, "gpus %d", &number) == 1) return number >= 0 && number <= MAX_GPUS && (server.gpus = number, 1);
    if (sscanf(line, "init %d", &server.init) == 1) return 1;
    if (sscanf(line, "serial %u", &server.serial) == 1) return 1;
    if (sscanf(line, "driver %79s", server.driver) == 1) return 1;
    if (!strncmp(line, "nic ", 4)) return 1;
    if (sscanf(line, "gpu %7s %31s %n", which, key, &used) < 2 || !used) return 0;
    if (!strcmp(which, "*")) {
        for (number = 0; number < server.gpus; number++)
            if (!gpu_line(number, key, line + used)) return 0;
        return 1;
    }
    return sscanf(which, "%d", &number) == 1 && number >= 0 && number < server.gpus && gpu_line(number, key, line + used);
}

static const char *description(void) {
    static char path[4096];
    const char *named = getenv("NVML_SERVER");
    Dl_info info;
    char *end;
    if (named && *named) return named;
    if (!dladdr((void *)description, &info) || !info.dli_fname) return "";
    snprintf(path, sizeof path, "%s", info.dli_fname);
    end = strrchr(path, '/');
    snprintf(end ? end + 1 : path, sizeof path - (end ? (size_t)(end + 1 - path) : 0), "server.txt");
    return path;
}

static void begin(void) {
    memset(&server, 0, sizeof server);
    snprintf(server.driver, sizeof server.driver, "550.54.15");
    for (int i = 0; i < MAX_GPUS; i++) {
        Gpu *gpu = &server.gpu[i];
        snprintf(gpu->name, sizeof gpu->name, "GPU (stand-in)");
        gpu->memory = 16ull << 30;
        gpu->major = 8;
        gpu->node = -1;
        gpu->temperature = 40;
        gpu->power = 60000;
        gpu->clock = 1410;
        for (int j = 0; j <= MAX_MIGS; j++) handles[i][j] = (Handle){i, j - 1};
    }
}

/* Read the description if it has changed. The caller holds the lock. */
static int load(void) {
    struct stat now;
    char line[1024];
    const char *path = description();
    FILE *file;
    if (stat(path, &now)) return DRIVER_NOT_LOADED;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return broken ? UNKNOWN : SUCCESS;
    file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    begin();
    broken = 0;
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        char *text = line + strspn(line, " \t"), *comment = strstr(line, " #");
        if (comment) *comment = 0;
        for (size_t length = strlen(text); length && strchr(" \t\r\n", text[length - 1]); length--) text[length - 1] = 0;
        if (!*text || *text == '#' || server_line(text)) continue;
        fprintf(stderr, "%s:%d: not understood: %s\n", path, number, text);
        broken = 1;
    }
    fclose(file);
    seen = now;
    return broken ? UNKNOWN : SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------- common parts */

static void nap(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000l};
    nanosleep(&time, NULL);
}

static int begun(void) {
    int error = load();
    return error ? error : initialised ? SUCCESS : UNINITIALIZED;
}

static int about(Device device, const char *call) {
    int error = begun();
    Gpu *gpu;
    if (error) return error;
    if (!device || device->gpu >= server.gpus) return INVALID_ARGUMENT;
    gpu = &server.gpu[device->gpu];
    if (device->mig >= gpu->migs) return INVALID_ARGUMENT;
    if (gpu->slow_ms) {
        int ms = gpu->slow_ms;
        pthread_mutex_unlock(&lock);
        nap(ms);
        pthread_mutex_lock(&lock);
    }
    if (gpu->error) return gpu->error;
    for (int i = gpu->failing - 1; i >= 0; i--)
        if (!strcmp(gpu->fails[i].call, call)) return gpu->fails[i].error;
    return SUCCESS;
}

static void unlock(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }

#define HOLD \
    __attribute__((cleanup(unlock))) pthread_mutex_t *held_ = (pthread_mutex_lock(&lock), &lock); \
    int error_
#define BEGUN HOLD = begun(); if (error_) return error_
#define ABOUT(device) \
    HOLD = about(device, __func__); if (error_) return error_; \
    const Gpu *gpu = &server.gpu[(device)->gpu]; \
    (void)gpu
#define WHOLE(device) ABOUT(device); if ((device)->mig >= 0) return NOT_SUPPORTED
#define FROM(version) if (gpu->major < (version)) return NOT_SUPPORTED

static int copied(char *out, unsigned size, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int length = vsnprintf(out, size, format, list);
    va_end(list);
    return length < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

/* Return the GPU with the driver's number `index`; -1: none. */
static int counted(unsigned index) {
    for (int i = 0; i < server.gpus; i++)
        if (!server.gpu[i].gone && !index--) return i;
    return -1;
}

static unsigned index_of(int gpu) {
    unsigned index = 0;
    for (int i = 0; i < gpu; i++) index += !server.gpu[i].gone;
    return index;
}

static int uuid(const Handle *device, char *out, unsigned size) {
    const Gpu *gpu = &server.gpu[device->gpu];
    if (device->mig >= 0)
        return copied(out, size, "MIG-%08x-0000-5000-8000-%010x%02x", server.serial, device->gpu, gpu->mig[device->mig].instance);
    if (*gpu->uuid) return copied(out, size, "%s", gpu->uuid);
    return copied(out, size, "GPU-%08x-0000-5000-8000-%012x", server.serial, device->gpu);
}

/* ------------------------------------------------------------------------------------------------- the server, its GPUs */

PUBLIC int nvmlInitWithFlags(unsigned flags) {
    HOLD = load();
    (void)flags;
    if (!error_) error_ = server.init;
    if (!error_) initialised++;
    return error_;
}
PUBLIC int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
PUBLIC int nvmlShutdown(void) {
    HOLD = initialised ? SUCCESS : UNINITIALIZED;
    if (!error_) initialised--;
    return error_;
}
PUBLIC const char *nvmlErrorString(int error) {
    static __thread char text[40];
    snprintf(text, sizeof text, "error %d of NVML", error);
    return text;
}
PUBLIC int nvmlSystemGetDriverVersion(char *out, unsigned size) { BEGUN; return copied(out, size, "%s", server.driver); }
PUBLIC int nvmlSystemGetNVMLVersion(char *out, unsigned size) { BEGUN; return copied(out, size, "12.%s", server.driver); }
PUBLIC int nvmlSystemGetCudaDriverVersion_v2(int *out) { BEGUN; return (*out = 12040, SUCCESS); }
PUBLIC int nvmlDeviceGetCount_v2(unsigned *out) { BEGUN; return (*out = index_of(server.gpus), SUCCESS); }

static int handle(int gpu, const char *call, Device *out) {
    if (gpu < 0) return INVALID_ARGUMENT;
    *out = &handles[gpu][0];
    return about(*out, call);
}
PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) { BEGUN; return handle(counted(index), __func__, out); }
PUBLIC int nvmlDeviceGetHandleByUUID(const char *wanted, Device *out) {
    char text[96];
    BEGUN;
    for (int i = 0; i < server.gpus; i++)
        for (int j = 0; j <= server.gpu[i].migs; j++)
            if (!server.gpu[i].gone && !uuid(&handles[i][j], text, sizeof text) && !strcmp(text, wanted)) {
                *out = &handles[i][j];
                return about(*out, __func__);
            }
    return NOT_FOUND;
}
PUBLIC int nvmlDeviceGetIndex(Device device, unsigned *out) {
    ABOUT(device);
    *out = device->mig >= 0 ? (unsigned)device->mig : index_of(device->gpu);
    return SUCCESS;
}
PUBLIC int nvmlDeviceGetMinorNumber(Device device, unsigned *out) { WHOLE(device); return (*out = device->gpu, SUCCESS); }
PUBLIC int nvmlDeviceGetName(Device device, char *out, unsigned size) {
    ABOUT(device);
    if (device->mig >= 0) return copied(out, size, "%s MIG %s", gpu->name, gpu->mig[device->mig].profile);
    return copied(out, size, "%s", gpu->name);
}
PUBLIC int nvmlDeviceGetUUID(Device device, char *out, unsigned size) { ABOUT(device); return uuid(device, out, size); }
PUBLIC int nvmlDeviceGetSerial(Device device, char *out, unsigned size) {
    WHOLE(device);
    return copied(out, size, "%u%03d", server.serial, device->gpu);
}
PUBLIC int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    ABOUT(device);
    return (*major = gpu->major, *minor = gpu->minor, SUCCESS);
}
PUBLIC int nvmlDeviceGetMemoryInfo(Device device, Count out[3]) {
    ABOUT(device);
    out[0] = device->mig >= 0 ? gpu->mig[device->mig].memory : gpu->memory;
    out[2] = device->mig >= 0 || gpu->used > out[0] ? 0 : gpu->used;
    out[1] = out[0] - out[2];
    return SUCCESS;
}
typedef struct { unsigned version; Count total, reserved, free, used; } Memory2;
PUBLIC int nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *out) {
    Count plain[3];
    int error = nvmlDeviceGetMemoryInfo(device, plain);
    if (!error) *out = (Memory2){out->version, plain[0], 0, plain[1], plain[2]};
    return error;
}
PUBLIC int nvmlDeviceGetPersistenceMode(Device device, int *out) { WHOLE(device); return (*out = 1, SUCCESS); }
PUBLIC int nvmlDeviceGetComputeMode(Device device, int *out) { ABOUT(device); return (*out = 0, SUCCESS); }

/* ----------------------------------------------------------------------------------------------------------- its state */

PUBLIC int nvmlDeviceGetUtilizationRates(Device device, unsigned out[2]) {
    WHOLE(device);
    return (out[0] = gpu->util, out[1] = gpu->util / 2, SUCCESS);
}
typedef struct { Count time_us, value; } Sample;
/* Of the last second, one each 200 ms. */
PUBLIC int nvmlDeviceGetSamples(Device device, int which, Count since_us, int *type, unsigned *count, Sample *out) {
    WHOLE(device);
    struct timespec now;
    unsigned found = 0;
    if (which != 1) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    Count last_us = (now.tv_sec * 1000000ull + now.tv_nsec / 1000) / 200000 * 200000;
    for (Count time_us = last_us - 800000; time_us <= last_us; time_us += 200000) {
        if (time_us <= since_us) continue;
        if (out && found >= *count) return INSUFFICIENT_SIZE;
        if (out) out[found] = (Sample){time_us, gpu->util};
        found++;
    }
    return (*type = 1, *count = found, found ? SUCCESS : NOT_FOUND);
}
PUBLIC int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *out) {
    WHOLE(device);
    return sensor ? INVALID_ARGUMENT : (*out = gpu->temperature, SUCCESS);
}
PUBLIC int nvmlDeviceGetTemperatureThreshold(Device device, int which, unsigned *out) {
    WHOLE(device);
    return which > 1 ? NOT_SUPPORTED : (*out = which ? 90 : 95, SUCCESS); /* slowdown, shutdown */
}
PUBLIC int nvmlDeviceGetPowerUsage(Device device, unsigned *out) { WHOLE(device); return (*out = gpu->power, SUCCESS); }
PUBLIC int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *out) { WHOLE(device); return (*out = 400000, SUCCESS); }
PUBLIC int nvmlDeviceGetClockInfo(Device device, int kind, unsigned *out) {
    WHOLE(device);
    return (*out = kind == 2 ? 1215 : gpu->clock, SUCCESS);
}
PUBLIC int nvmlDeviceGetMaxClockInfo(Device device, int kind, unsigned *out) {
    WHOLE(device);
    return (*out = kind == 2 ? 1215 : 1410, SUCCESS);
}
PUBLIC int nvmlDeviceGetCurrentClocksEventReasons(Device device, Count *out) { WHOLE(device); return (*out = gpu->throttle, SUCCESS); }
PUBLIC int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, Count *out) { WHOLE(device); return (*out = gpu->throttle, SUCCESS); }
PUBLIC int nvmlDeviceGetSupportedClocksEventReasons(Device device, Count *out) { WHOLE(device); return (*out = 0x1ff, SUCCESS); }
PUBLIC int nvmlDeviceGetEccMode(Device device, int *now, int *later) {
    WHOLE(device);
    FROM(7);
    return (*now = *later = 1, SUCCESS);
}
PUBLIC int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, Count *out) {
    WHOLE(device);
    FROM(7);
    (void)counter;
    return (*out = kind ? gpu->uncorrected : gpu->corrected, SUCCESS);
}
PUBLIC int nvmlDeviceGetRetiredPages(Device device, int cause, unsigned *count, Count *out) {
    WHOLE(device);
    (void)cause, (void)out;
    if (gpu->major != 7) return NOT_SUPPORTED;
    return (*count = 0, SUCCESS);
}
PUBLIC int nvmlDeviceGetRetiredPagesPendingStatus(Device device, int *out) {
    WHOLE(device);
    if (gpu->major != 7) return NOT_SUPPORTED; /* later ones remap rows */
    return (*out = gpu->retired, SUCCESS);
}
PUBLIC int nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    WHOLE(device);
    FROM(8);
    *corrected = gpu->remapped[0], *uncorrected = gpu->remapped[1], *pending = gpu->remapped[2], *failure = gpu->remapped[3];
    return SUCCESS;
}
typedef struct { unsigned pid; Count memory; unsigned gpu_instance, compute_instance; } ProcessInfo;
PUBLIC int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, ProcessInfo *out) {
    ABOUT(device);
    unsigned room = *count, there = device->mig >= 0 ? 0 : (unsigned)gpu->processes;
    *count = there;
    if (there && (!out || room < there)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there; i++) out[i] = (ProcessInfo){gpu->process[i].pid, gpu->process[i].memory, ~0u, ~0u};
    return SUCCESS;
}
PUBLIC int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, ProcessInfo *out) {
    ABOUT(device);
    (void)out;
    return (*count = 0, SUCCESS);
}

/* ------------------------------------------------------------------------------------------------------------ its place */

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } Pci;
static void pci_at(unsigned domain, unsigned bus, unsigned slot, unsigned function, Pci *out) {
    memset(out, 0, sizeof *out);
    out->domain = domain, out->bus = bus, out->device = slot, out->id = 0x10de;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%X", domain & 0xffff, bus & 0xff, slot & 0xff, function & 15);
    snprintf(out->address, sizeof out->address, "%08X:%02X:%02X.%X", domain, bus & 0xff, slot & 0xff, function & 15);
}
static void pci_of(int gpu, Pci *out) {
    const char *last = strrchr(server.gpu[gpu].path, '/');
    unsigned domain = 0, bus = 0x10u + (unsigned)gpu, slot = 0, function = 0;
    if (last) sscanf(last + 1, "%x:%x:%x.%x", &domain, &bus, &slot, &function);
    pci_at(domain, bus, slot, function, out);
}
PUBLIC int nvmlDeviceGetPciInfo_v3(Device device, Pci *out) { ABOUT(device); return (pci_of(device->gpu, out), SUCCESS); }
PUBLIC int nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, Device *out) {
    Pci pci;
    BEGUN;
    for (int i = 0; i < server.gpus; i++) {
        pci_of(i, &pci);
        if (!server.gpu[i].gone && (!strcasecmp(pci.address, wanted) || !strcasecmp(pci.legacy, wanted)))
            return handle(i, __func__, out);
    }
    return NOT_FOUND;
}
static int told(const int value, unsigned *out) { return value ? (*out = (unsigned)value, SUCCESS) : NOT_SUPPORTED; }
PUBLIC int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned *out) { WHOLE(device); return told(gpu->generation, out); }
PUBLIC int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned *out) { WHOLE(device); return told(gpu->generation, out); }
PUBLIC int nvmlDeviceGetGpuMaxPcieLinkGeneration(Device device, unsigned *out) { WHOLE(device); return told(gpu->generation, out); }
PUBLIC int nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned *out) { WHOLE(device); return told(gpu->width, out); }
PUBLIC int nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned *out) { WHOLE(device); return told(gpu->width, out); }
PUBLIC int nvmlDeviceGetCpuAffinity(Device device, unsigned words, unsigned long *out) {
    ABOUT(device);
    unsigned long any = 0;
    memset(out, 0, words * sizeof *out);
    for (unsigned i = 0; i < CPU_WORDS; i++) {
        any |= gpu->cpus[i];
        if (i < words) out[i] = gpu->cpus[i];
    }
    return any ? SUCCESS : NOT_SUPPORTED;
}
PUBLIC int nvmlDeviceGetMemoryAffinity(Device device, unsigned words, unsigned long *out, int scope) {
    ABOUT(device);
    (void)scope;
    memset(out, 0, words * sizeof *out);
    if (gpu->node < 0 || gpu->node >= (int)words * 64) return NOT_SUPPORTED;
    out[gpu->node / 64] |= 1ul << gpu->node % 64;
    return SUCCESS;
}

/* Return the level of two GPUs' closest common ancestor. A path has both ends of a PCIe switch, and a root port above them. */
static int common(int a, int b) {
    const Gpu *first = &server.gpu[a], *second = &server.gpu[b];
    const char *p = first->path, *q = second->path;
    int same = 0, below = 0;
    if (a == b) return INTERNAL;
    if (!*p || !*q) return -1;
    for (size_t part; (part = strcspn(p, "/")) == strcspn(q, "/") && !strncmp(p, q, part) && p[part]; same++)
        p += part + 1, q += part + 1;
    if (!same) return first->node >= 0 && first->node == second->node ? NODE : SYSTEM;
    if (same < 3) return HOST_BRIDGE;
    for (const char *c = p; *c; c++) below += *c == '/';
    for (const char *c = q; *c; c++) below += *c == '/';
    return below <= 2 ? SINGLE : MULTIPLE;
}
PUBLIC int nvmlDeviceGetTopologyCommonAncestor(Device device, Device other, int *out) {
    ABOUT(device);
    int error = about(other, __func__), level = error ? -1 : common(device->gpu, other->gpu);
    return error ? error : level < 0 ? NOT_SUPPORTED : (*out = level, SUCCESS);
}
PUBLIC int nvmlDeviceGetTopologyNearestGpus(Device device, int level, unsigned *count, Device *out) {
    WHOLE(device);
    unsigned room = *count, found = 0;
    for (int i = 0; i < server.gpus; i++)
        if (i != device->gpu && !server.gpu[i].gone && common(device->gpu, i) == level) {
            if (out && found < room) out[found] = &handles[i][0];
            found++;
        }
    return (*count = found, SUCCESS);
}
PUBLIC int nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, Device *out) {
    BEGUN;
    unsigned room = *count, found = 0;
    if (cpu >= CPU_WORDS * 64) return INVALID_ARGUMENT;
    for (int i = 0; i < server.gpus; i++)
        if (!server.gpu[i].gone && server.gpu[i].cpus[cpu / 64] >> cpu % 64 & 1) {
            if (out && found < room) out[found] = &handles[i][0];
            found++;
        }
    return (*count = found, SUCCESS);
}
PUBLIC int nvmlDeviceGetP2PStatus(Device device, Device other, int what, int *out) {
    WHOLE(device);
    const Gpu *second = &server.gpu[other->gpu];
    int linked = gpu->nvlink[other->gpu] || (gpu->nvswitch && second->nvswitch);
    if (gpu->p2p || second->p2p) *out = gpu->p2p ? gpu->p2p : second->p2p;
    else if (strcmp(gpu->name, second->name)) *out = 2; /* not these GPUs */
    else if (what == 2) *out = linked ? 0 : 5;          /* over NVLink */
    else *out = linked || common(device->gpu, other->gpu) < SYSTEM ? 0 : 3; /* not through two sockets */
    return SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------------- NVLink */

enum { NO_LINK = -1, TO_SWITCH = MAX_GPUS };
static int link_end(const Gpu *gpu, unsigned link) {
    if (link < (unsigned)gpu->nvoff) return NO_LINK;
    link -= (unsigned)gpu->nvoff;
    for (int i = 0; i < server.gpus; i++) {
        if (link < (unsigned)gpu->nvlink[i]) return i;
        link -= (unsigned)gpu->nvlink[i];
    }
    return link < (unsigned)gpu->nvswitch ? TO_SWITCH + (int)link / 2 : NO_LINK;
}
static int no_nvlink(const Gpu *gpu, unsigned link) {
    if (!gpu->nvoff && link_end(gpu, 0) == NO_LINK) return NOT_SUPPORTED;
    return link >= LINKS ? INVALID_ARGUMENT : SUCCESS;
}
PUBLIC int nvmlDeviceGetNvLinkState(Device device, unsigned link, int *out) {
    WHOLE(device);
    if ((error_ = no_nvlink(gpu, link))) return error_;
    return (*out = link_end(gpu, link) != NO_LINK, SUCCESS);
}
PUBLIC int nvmlDeviceGetNvLinkVersion(Device device, unsigned link, unsigned *out) {
    WHOLE(device);
    if ((error_ = no_nvlink(gpu, link))) return error_;
    return (*out = gpu->major >= 9 ? 4 : gpu->major >= 8 ? 3 : 2, SUCCESS);
}
PUBLIC int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, Pci *out) {
    WHOLE(device);
    if ((error_ = no_nvlink(gpu, link))) return error_;
    int end = link_end(gpu, link);
    if (end == NO_LINK) return NOT_SUPPORTED;
    if (end < TO_SWITCH) pci_of(end, out);
    else pci_at(0, 0xc4u + (unsigned)(end - TO_SWITCH), 0, 0, out);
    return SUCCESS;
}
PUBLIC int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, int *out) {
    WHOLE(device);
    if ((error_ = no_nvlink(gpu, link))) return error_;
    int end = link_end(gpu, link);
    return end == NO_LINK ? NOT_SUPPORTED : (*out = end < TO_SWITCH ? 0 : 2, SUCCESS);
}
typedef struct { unsigned field, scope; long long time, latency; int type, error; union { double d; unsigned u; Count c; } value; } Field;
PUBLIC int nvmlDeviceGetFieldValues(Device device, int count, Field *out) {
    WHOLE(device);
    int links = 0;
    for (unsigned link = 0; link < LINKS; link++) links += link_end(gpu, link) != NO_LINK;
    for (int i = 0; i < count; i++) {
        out[i].type = 1;
        out[i].error = links ? SUCCESS : NOT_SUPPORTED;
        if (out[i].field == 91) out[i].value.u = (unsigned)links; /* NVML_FI_DEV_NVLINK_LINK_COUNT */
        else if (out[i].field == 90 && gpu->nvspeed) out[i].value.u = gpu->nvspeed; /* NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON */
        else out[i].error = NOT_SUPPORTED;
    }
    return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------------ MIG */

PUBLIC int nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *later) {
    WHOLE(device);
    FROM(8);
    return (*now = *later = gpu->migs > 0 || gpu->divided, SUCCESS);
}
PUBLIC int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *out) {
    WHOLE(device);
    return (*out = gpu->major >= 8 ? MAX_MIGS : 0, SUCCESS);
}
PUBLIC int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out) {
    WHOLE(device);
    FROM(8);
    if (index >= MAX_MIGS) return INVALID_ARGUMENT;
    return (int)index < gpu->migs ? (*out = &handles[device->gpu][index + 1], SUCCESS) : NOT_FOUND;
}
PUBLIC int nvmlDeviceIsMigDeviceHandle(Device device, unsigned *out) { ABOUT(device); return (*out = device->mig >= 0, SUCCESS); }
PUBLIC int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *out) {
    ABOUT(device);
    return device->mig < 0 ? INVALID_ARGUMENT : (*out = &handles[device->gpu][0], SUCCESS);
}
PUBLIC int nvmlDeviceGetGpuInstanceId(Device device, unsigned *out) {
    ABOUT(device);
    return device->mig < 0 ? NOT_SUPPORTED : (*out = (unsigned)gpu->mig[device->mig].instance, SUCCESS);
}
PUBLIC int nvmlDeviceGetComputeInstanceId(Device device, unsigned *out) {
    ABOUT(device);
    return device->mig < 0 ? NOT_SUPPORTED : (*out = 0, SUCCESS);
}
typedef struct { unsigned processors, copy, decoder, encoder, jpeg, ofa, slices, compute_slices; Count memory_mb; } Attributes;
PUBLIC int nvmlDeviceGetAttributes_v2(Device device, Attributes *out) {
    ABOUT(device);
    if (device->mig < 0) return NOT_SUPPORTED;
    unsigned slices = (unsigned)atoi(gpu->mig[device->mig].profile);
    *out = (Attributes){14 * slices, 1, 0, 0, 0, 0, slices, slices, gpu->mig[device->mig].memory >> 20};
    return SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------------- events */

typedef struct { int next; Count wanted[MAX_GPUS]; int from[MAX_GPUS]; } EventSet;
typedef struct { Device device; Count type, data; unsigned gpu_instance, compute_instance; } EventData;

PUBLIC int nvmlEventSetCreate(EventSet **out) {
    BEGUN;
    *out = calloc(1, sizeof **out);
    if (!*out) return UNKNOWN;
    (*out)->next = server.events;
    return SUCCESS;
}
PUBLIC int nvmlEventSetFree(EventSet *set) { return (free(set), SUCCESS); }
PUBLIC int nvmlDeviceGetSupportedEventTypes(Device device, Count *out) {
    ABOUT(device);
    return (*out = gpu->major >= 7 ? 0x1f : 0x1c, SUCCESS);
}
PUBLIC int nvmlDeviceRegisterEvents(Device device, Count types, EventSet *set) {
    ABOUT(device);
    if (types & ~(gpu->major >= 7 ? 0x1full : 0x1cull)) return NOT_SUPPORTED;
    set->wanted[device->gpu] |= types;
    set->from[device->gpu] = server.events;
    return SUCCESS;
}

static int next_event(EventSet *set, EventData *out) {
    BEGUN;
    if (set->next > server.events) { /* the file has been replaced: its events count as delivered */
        set->next = server.events;
        memset(set->from, 0, sizeof set->from);
    }
    while (set->next < server.events) {
        int at = set->next++;
        const Happening *event = &server.event[at];
        if (!(event->type & set->wanted[event->gpu]) || at < set->from[event->gpu]) continue;
        *out = (EventData){&handles[event->gpu][0], event->type, event->data, ~0u, ~0u};
        return SUCCESS;
    }
    return TIMEOUT;
}
PUBLIC int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    for (unsigned waited = 0;; waited += POLL_MS) {
        int error = next_event(set, out);
        if (error != TIMEOUT || waited >= timeout_ms) return error;
        nap(POLL_MS);
    }
}
