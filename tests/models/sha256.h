/** SHA-256, for fingerprints of files and tensors. */
#ifndef H3_TESTS_SHA256_H
#define H3_TESTS_SHA256_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline uint32_t sha_rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* The round constants are the first 32 fraction bits of the cube roots of the first 64 primes, the
 * start values those of the square roots of the first 8. */
static inline uint32_t sha_fraction(long double x)
{
    return (uint32_t)((x - floorl(x)) * 4294967296.0L);
}

static inline void sha_block(uint32_t h[8], const uint32_t k[64], const uint8_t *p)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (sha_rotr(a, 7) ^ sha_rotr(a, 18) ^ a >> 3) + w[i - 7] +
               (sha_rotr(b, 17) ^ sha_rotr(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t t1 = v[7] + (sha_rotr(e, 6) ^ sha_rotr(e, 11) ^ sha_rotr(e, 25)) +
                            ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t t2 = (sha_rotr(a, 2) ^ sha_rotr(a, 13) ^ sha_rotr(a, 22)) +
                            ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

static inline void sha256(unsigned char digest[32], const void *data, size_t n)
{
    uint32_t h[8], k[64];
    uint8_t tail[128] = {0};
    int prime = 2;
    for (int i = 0; i < 64; prime++) {
        bool is_prime = true;
        for (int d = 2; d * d <= prime; d++)
            is_prime = is_prime && prime % d != 0;
        if (!is_prime) continue;
        if (i < 8) h[i] = sha_fraction(sqrtl((long double)prime));
        k[i++] = sha_fraction(cbrtl((long double)prime));
    }
    const uint8_t *p = data;
    size_t left = n;
    for (; left >= 64; left -= 64, p += 64)
        sha_block(h, k, p);
    memcpy(tail, p, left);
    tail[left] = 0x80;
    const size_t end = left < 56 ? 64 : 128;
    for (int i = 0; i < 8; i++)
        tail[end - 1 - (size_t)i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < end; i += 64)
        sha_block(h, k, tail + i);
    for (int i = 0; i < 32; i++)
        digest[i] = (unsigned char)(h[i / 4] >> (24 - 8 * (i % 4)));
}

static inline void sha256_hex(char hex[65], const void *data, size_t n)
{
    unsigned char digest[32];

    sha256(digest, data, n);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

#endif
