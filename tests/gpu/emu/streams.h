/**
 * Streams of the emulator that go on by themselves, for ranks on several GPUs (H3_EMU_GPUS is set; otherwise all that is
 * enqueued is done at once). They have the habits of real ones that a program can hang on: a few channels carry all
 * streams, so that one which waits holds up others; a channel takes so many launches and lets the host wait then;
 * freeing memory waits for all that the device was given.
 */
#ifndef H3_TESTS_GPU_EMU_STREAMS_H
#define H3_TESTS_GPU_EMU_STREAMS_H

#include <cstddef>
#include <cuda_runtime.h>
#include <functional>

namespace emu
{
bool is_async();
/** `step` is called until it says that it is through; at once where nothing is asynchronous. */
void enqueue(cudaStream_t s, std::function<bool()> step);
/** All that the device was given. */
void drain();
cudaError_t wait(cudaStream_t s);
bool is_pinned(const void *p);

/* emu.cc: memory that other processes can map, and access to our own. */
bool find_block(const void *p, int *fd, size_t *at, size_t *bytes);
void open_memory();
void close_memory();
struct memory_access {
    memory_access() { open_memory(); }
    ~memory_access() { close_memory(); }
};
} // namespace emu

#endif
