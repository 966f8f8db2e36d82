// What exported launchers share: the regions of a kernel in the device's memory, and frames as its words.
#ifndef NPUC_LAUNCH_HPP
#define NPUC_LAUNCH_HPP

#include <bmlib_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

extern "C" bm_status_t okkernel_launch_sync(bm_handle_t handle, const char *name, const void *args,
                                            unsigned int size);

namespace npuc {

inline void expect(bool done, const std::string &what)
{
    if (!done) {
        std::cerr << what << " failed\n";
        std::exit(EXIT_FAILURE);
    }
}

struct Frame {  // a camera's bytes, which become words of four images with a border around them, or floats
    std::size_t images, channels, height, width;
    std::size_t rows, columns, top, left;  // of the frame, and where it begins
    std::size_t strides[4];                // in the camera's bytes
    unsigned border[4];                    // of each channel
    bool is_float;
    unsigned flipped;  // bits of each byte
};

struct Region {
    const char *name;
    std::size_t bytes;
    bool is_read;
    bool is_written;
    Frame frame;  // images 0: bytes as they are
    std::size_t given() const
    {
        return frame.images > 0 ? frame.images * frame.channels * frame.rows * frame.columns : bytes;
    }
};

inline std::vector<char> contents(const char *path, std::size_t bytes)
{
    std::ifstream file(path, std::ios::binary);
    std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    expect(file.good() || file.eof(), std::string("reading ") + path);
    expect(data.size() == bytes, std::string(path) + ": the number of bytes");
    return data;
}

inline std::vector<char> stored(const Region &region, const void *from)
{
    const Frame &f = region.frame;
    const unsigned char *data = static_cast<const unsigned char *>(from);
    if (f.images == 0)
        return std::vector<char>(data, data + region.bytes);
    std::vector<char> words(region.bytes);
    std::size_t i = 0;
    for (std::size_t n = 0; n < f.images; n++)
        for (std::size_t c = 0; c < f.channels; c++)
            for (std::size_t y = 0; y < f.height; y++) {
                const std::size_t row = y - f.top;  // beyond the frame before it, too
                const std::size_t line = n * f.strides[0] + c * f.strides[1] + row * f.strides[2];
                for (std::size_t x = 0; x < f.width; x++, i++) {
                    const bool inside = row < f.rows && x - f.left < f.columns;
                    const unsigned value = inside ? data[line + (x - f.left) * f.strides[3]] : f.border[c];
                    const float number = static_cast<float>(value);
                    if (f.is_float)
                        std::memcpy(&words[i * sizeof number], &number, sizeof number);
                    else
                        words[(i - (n - n / 4) * f.channels * f.height * f.width) * 4 + n % 4] =
                            static_cast<char>(value ^ f.flipped);
                }
            }
    return words;
}

// An inference on an open device. from: weights and inputs, to: outputs, in the order of the regions.
inline void launch(const char *kernel, const Region *regions, std::size_t count, const void *const *from,
                   void *const *to, bm_handle_t handle)
{
    std::vector<bm_device_mem_t> memory(count);
    std::vector<unsigned long long> args;
    for (std::size_t i = 0; i < count; i++) {
        const Region &region = regions[i];
        const std::size_t bytes = region.bytes > 0 ? region.bytes : 1;
        expect(bm_malloc_device_byte(handle, &memory[i], bytes) == BM_SUCCESS, region.name);
        args.push_back(bm_mem_get_device_addr(memory[i]));
        if (region.is_read) {
            std::vector<char> data = stored(region, *from++);
            expect(bm_memcpy_s2d(handle, memory[i], data.data()) == BM_SUCCESS, region.name);
        }
    }
    const unsigned int size = static_cast<unsigned int>(args.size() * sizeof(args[0]));
    expect(okkernel_launch_sync(handle, kernel, args.data(), size) == BM_SUCCESS, "the kernel");
    for (std::size_t i = 0; i < count; i++) {
        if (regions[i].is_written)
            expect(bm_memcpy_d2s(handle, *to++, memory[i]) == BM_SUCCESS, regions[i].name);
        bm_free_device(handle, memory[i]);
    }
}

// The same with a file for each of them, on the first device: what `main` returns.
inline int launch_files(const char *kernel, const Region *regions, std::size_t count, int files, char **paths)
{
    int wanted_files = 0;
    for (std::size_t i = 0; i < count; i++)
        wanted_files += regions[i].is_read + regions[i].is_written;
    expect(files == wanted_files, "usage: the number of files, see the first lines of the launcher:");
    bm_handle_t handle;
    expect(bm_dev_request(&handle, 0) == BM_SUCCESS, "opening the device");
    std::vector<std::vector<char>> given, wanted;
    for (std::size_t i = 0; i < count; i++) {
        if (regions[i].is_read)
            given.push_back(contents(*paths++, regions[i].given()));
        if (regions[i].is_written)
            wanted.emplace_back(regions[i].bytes);
    }
    std::vector<const void *> from;
    std::vector<void *> to;
    for (std::vector<char> &data : given)
        from.push_back(data.data());
    for (std::vector<char> &data : wanted)
        to.push_back(data.data());
    launch(kernel, regions, count, from.data(), to.data(), handle);
    for (const std::vector<char> &data : wanted)
        std::ofstream(*paths++, std::ios::binary).write(data.data(), static_cast<long>(data.size()));
    bm_dev_free(handle);
    return EXIT_SUCCESS;
}

}  // namespace npuc

#endif
