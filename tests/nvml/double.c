/* A double of libnvidia-ml.so.1 for tests: its GPUs come from the environment (see __init__.py).
   Handles are small numbers: GPU i is i + 1, instance j of it is (i + 1) * 100 + j. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, GPUS = 16, ITEMS = 8 };
typedef void *device;

struct gpu {
    char uuid[96], name[96];
    int major, minor, cores, ecc, fabric, mig, instances, pids;
    unsigned long long reasons;
    char instance[ITEMS][96];
    unsigned pid[ITEMS];
};
static struct gpu gpus[GPUS];
static int count;

static char *field(char **rest) { return strsep(rest, "|"); }

static void parse(char *line) {
    struct gpu *g = &gpus[count++];
    char *item;
    memset(g, 0, sizeof *g);
    snprintf(g->uuid, sizeof g->uuid, "%s", field(&line));
    snprintf(g->name, sizeof g->name, "%s", field(&line));
    g->major = atoi(field(&line));
    g->minor = atoi(field(&line));
    g->cores = atoi(field(&line));
    g->ecc = atoi(field(&line));
    g->reasons = strtoull(field(&line), NULL, 0);
    g->fabric = atoi(field(&line));
    char *pids = field(&line), *mig = field(&line);
    if (*pids != '-')
        while ((item = strsep(&pids, ",")) && *item) g->pid[g->pids++] = atoi(item);
    if (*mig == '+') {
        g->mig = 1;
        for (mig++; (item = strsep(&mig, ",")) && *item; g->instances++)
            snprintf(g->instance[g->instances], 96, "%s", item);
    }
}

static struct gpu *of(device d) { long n = (long)d; return &gpus[(n >= 100 ? n / 100 : n) - 1]; }
static int instance(device d) { return (long)d >= 100 ? (int)((long)d % 100) : -1; }
static int text(char *to, unsigned length, const char *from) { snprintf(to, length, "%s", from); return OK; }

int nvmlInitWithFlags(unsigned flags) {
    char *all = strdup(getenv("DOUBLE_GPUS") ? getenv("DOUBLE_GPUS") : ""), *line, *rest = all;
    count = 0;
    while ((line = strsep(&rest, "\n")))
        if (*line) parse(line);
    free(all);
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "the double refuses"; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = atoi(getenv("DOUBLE_CUDA")); return OK; }
int nvmlSystemGetDriverVersion(char *to, unsigned n) { return text(to, n, getenv("DOUBLE_DRIVER")); }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) { *d = (device)(long)(i + 1); return i < count ? OK : INVALID; }
int nvmlDeviceGetHandleByUUID(const char *uuid, device *d) {
    for (int i = 0; i < count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) { *d = (device)(long)(i + 1); return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(device d, char *to, unsigned n) {
    return text(to, n, instance(d) < 0 ? of(d)->uuid : of(d)->instance[instance(d)]);
}
int nvmlDeviceGetName(device d, char *to, unsigned n) { return text(to, n, of(d)->name); }
int nvmlDeviceGetCudaComputeCapability(device d, int *a, int *b) { *a = of(d)->major; *b = of(d)->minor; return OK; }
int nvmlDeviceGetNumGpuCores(device d, unsigned *n) { *n = of(d)->cores; return OK; }
int nvmlDeviceGetEccMode(device d, unsigned *now, unsigned *next) { *now = *next = of(d)->ecc; return OK; }
int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *next) { *now = *next = of(d)->mig; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *n) { *n = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned i, device *to) {
    if (i >= of(d)->instances) return NOT_FOUND;
    *to = (device)((long)d * 100 + i);
    return OK;
}
int nvmlDeviceGetAttributes_v2(device d, unsigned *attributes) { attributes[0] = 16; return instance(d) < 0 ? UNSUPPORTED : OK; }
int nvmlDeviceGetMemoryInfo(device d, unsigned long long *m) { m[0] = m[1] = 150ull << 30; m[2] = 0; return OK; }
int nvmlDeviceGetClockInfo(device d, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1980 : 3201; return OK; }
int nvmlDeviceGetMaxClockInfo(device d, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1980 : 3201; return OK; }
int nvmlDeviceGetPowerUsage(device d, unsigned *mw) { *mw = 76500; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(device d, unsigned long long *bits) { *bits = of(d)->reasons; return OK; }
int nvmlDeviceGetViolationStatus(device d, int policy, unsigned long long *v) { v[0] = 1; v[1] = policy ? 5 : 7; return OK; }
int nvmlDeviceGetGpuFabricInfo(device d, unsigned *info) {
    memset(info, 0, 28);
    info[6] = of(d)->fabric;
    return OK;
}
struct process { unsigned pid; unsigned long long memory; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, struct process *to) {
    int room = *n, have = of(d)->pids;
    *n = have;
    if (have > room) return SMALL;
    for (int i = 0; i < have; i++) to[i] = (struct process){of(d)->pid[i], 1 << 30, 0, 0};
    return OK;
}
