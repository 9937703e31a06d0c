/**
 * Holds memory of a GPU, as another program would: tests/gpu/conditions.sh.
 *
 *   h3av-gpu-hog LEAVE_MIB      takes all but that much, says how much it holds, waits for the end of
 *                               its input
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const size_t leave = argc > 1 ? (size_t)atoll(argv[1]) << 20 : 0, least = (size_t)1 << 20;
    size_t n_free = 0, n_total = 0, held = 0;
    void *p;

    if (cudaMemGetInfo(&n_free, &n_total) != cudaSuccess) return 1;
    for (size_t piece = (size_t)1 << 34; piece >= least; piece /= 2)
        while (cudaMemGetInfo(&n_free, &n_total) == cudaSuccess && n_free >= leave + piece &&
               cudaMalloc(&p, piece) == cudaSuccess)
            held += piece;
    (void)cudaGetLastError();
    printf("held %.1f MiB\n", (double)held / 1048576);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return 0;
}
