/* A management library that answers for GPUs described in NVML_GPUS: "uuid,name,major,minor,cores,mig,ecc,pid;...",
   driver in NVML_DRIVER, its CUDA in NVML_CUDA (13000 is 13.0). Enough of NVML for the facts that are asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD_ARGUMENT = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, MOST = 16 };

typedef struct { char uuid[96], name[96]; int major, minor, cores, mig, ecc, pid; } gpu;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;

static gpu gpus[MOST];
static unsigned count;

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *text = getenv("NVML_GPUS");
    if (text == NULL) return 9; /* driver not loaded */
    char *copy = strdup(text), *rest = copy, *item;
    count = 0;
    while ((item = strsep(&rest, ";")) != NULL && *item != 0 && count < MOST) {
        gpu *g = &gpus[count++];
        sscanf(item, "%95[^,],%95[^,],%d,%d,%d,%d,%d,%d", g->uuid, g->name, &g->major, &g->minor, &g->cores, &g->mig,
               &g->ecc, &g->pid);
    }
    free(copy);
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *to, unsigned n) { snprintf(to, n, "%s", getenv("NVML_DRIVER")); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = atoi(getenv("NVML_CUDA")); return OK; }
int nvmlDeviceGetCount_v2(unsigned *to) { *to = count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) {
    if (index >= count) return BAD_ARGUMENT;
    *to = &gpus[index];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **to) {
    for (unsigned i = 0; i < count; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0) { *to = &gpus[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(gpu *g, char *to, unsigned n) { snprintf(to, n, "%s", g->uuid); return OK; }
int nvmlDeviceGetName(gpu *g, char *to, unsigned n) { snprintf(to, n, "%s", g->name); return OK; }
int nvmlDeviceGetCudaComputeCapability(gpu *g, int *major, int *minor) { *major = g->major; *minor = g->minor; return OK; }
int nvmlDeviceGetNumGpuCores(gpu *g, unsigned *to) { *to = (unsigned)g->cores; return g->cores ? OK : UNSUPPORTED; }
int nvmlDeviceGetMigMode(gpu *g, unsigned *now, unsigned *next) {
    *now = *next = (unsigned)g->mig;
    return g->mig < 0 ? UNSUPPORTED : OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(gpu *g, unsigned index, void **to) {
    static gpu instances[2];
    if (!g->mig || index > 1) return NOT_FOUND;
    instances[index] = *g;
    snprintf(instances[index].uuid, 96, "MIG-%u-%.80s", index, g->uuid);
    snprintf(instances[index].name, 96, "%.70s MIG 1g", g->name);
    *to = &instances[index];
    return OK;
}
int nvmlDeviceGetEccMode(gpu *g, unsigned *now, unsigned *next) {
    *now = *next = (unsigned)g->ecc;
    return g->ecc < 0 ? UNSUPPORTED : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(gpu *g, unsigned *n, process *to) {
    if (g->pid == 0) { *n = 0; return OK; }
    if (to == NULL) { *n = 1; return TOO_SMALL; }
    *n = 1;
    memset(to, 0, sizeof *to);
    to->pid = (unsigned)g->pid;
    return OK;
}
int nvmlDeviceGetClockInfo(gpu *g, int kind, unsigned *to) { (void)g; *to = kind ? 2000 : 1500; return OK; }
int nvmlDeviceGetMaxClockInfo(gpu *g, int kind, unsigned *to) { (void)g; *to = kind ? 2600 : 1980; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu *g, unsigned long long *to) { (void)g; *to = 0x44; return OK; }
int nvmlDeviceGetTemperature(gpu *g, int kind, unsigned *to) { (void)g; (void)kind; *to = 41; return OK; }
int nvmlDeviceGetPowerUsage(gpu *g, unsigned *to) { (void)g; *to = 123500; return OK; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "an error"; }
