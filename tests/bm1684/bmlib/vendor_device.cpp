/* A device of bmlib that is the vendor's chip model: what an exported launcher and its kernel run on in tests. */
#include <bmlib_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

extern "C" {
int cmodel_init(int node, unsigned long long bytes);
void set_cur_nodechip_idx(int node);
int cmodel_nodechip_runtime_init(int node);
void *okk_global_mem_addr(unsigned long long address);
void okk_get_id_node(void *ids);
bm_status_t okkernel_launch_sync(bm_handle_t handle, const char *name, const void *args, unsigned int size);
void fw_log(int level, char *format, ...);
}

static const unsigned long long START = 1ULL << 32;
static unsigned long long next_address = START;
static std::map<unsigned long long, unsigned int> sizes;

void fw_log(int, char *, ...) {}

bm_status_t bm_dev_request(bm_handle_t *, int)
{
    cmodel_init(0, strtoull(getenv("SYSTEM_BYTES"), nullptr, 10));
    set_cur_nodechip_idx(0);
    cmodel_nodechip_runtime_init(0);
    return BM_SUCCESS;
}

/* The vendor's libraries do not end in a process of this kind: this is the launcher's last call. */
void bm_dev_free(bm_handle_t)
{
    unsigned int ids[64];
    okk_get_id_node(ids);
    std::printf("%u\n", ids[3]);
    std::fflush(nullptr);
    _exit(0);
}

bm_status_t bm_malloc_device_byte(bm_handle_t, bm_device_mem_t *memory, unsigned int bytes)
{
    memory->address = next_address;
    sizes[next_address] = bytes;
    next_address += (bytes + 4095ULL) / 4096 * 4096;
    return BM_SUCCESS;
}

void bm_free_device(bm_handle_t, bm_device_mem_t) {}
unsigned long long bm_mem_get_device_addr(bm_device_mem_t memory) { return memory.address; }

bm_status_t bm_memcpy_s2d(bm_handle_t, bm_device_mem_t memory, void *from)
{
    std::memcpy(okk_global_mem_addr(memory.address), from, sizes[memory.address]);
    return BM_SUCCESS;
}

bm_status_t bm_memcpy_d2s(bm_handle_t, void *to, bm_device_mem_t memory)
{
    std::memcpy(to, okk_global_mem_addr(memory.address), sizes[memory.address]);
    return BM_SUCCESS;
}

bm_status_t okkernel_launch_sync(bm_handle_t, const char *name, const void *args, unsigned int)
{
    void *kernel = dlsym(nullptr, name);
    if (kernel == nullptr)
        return 1;
    reinterpret_cast<void (*)(const void *)>(kernel)(args);
    return BM_SUCCESS;
}
