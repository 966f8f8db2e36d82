/* Declarations of what the launcher calls, as bmlib has them. */
#pragma once
typedef int bm_status_t;
typedef void *bm_handle_t;
struct bm_device_mem_t { unsigned long long address; };
enum { BM_SUCCESS = 0 };
bm_status_t bm_dev_request(bm_handle_t *, int);
void bm_dev_free(bm_handle_t);
bm_status_t bm_malloc_device_byte(bm_handle_t, bm_device_mem_t *, unsigned int);
void bm_free_device(bm_handle_t, bm_device_mem_t);
unsigned long long bm_mem_get_device_addr(bm_device_mem_t);
bm_status_t bm_memcpy_s2d(bm_handle_t, bm_device_mem_t, void *);
bm_status_t bm_memcpy_d2s(bm_handle_t, void *, bm_device_mem_t);
