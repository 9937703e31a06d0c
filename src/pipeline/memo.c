/** Remembered results; see memo.h. */
#include "memo.h"

#include <stdlib.h>
#include <string.h>

h3_memo_key h3_memo_start(uint64_t identity)
{
    h3_memo_key k = {0xcbf29ce484222325u, 0x9e3779b97f4a7c15u};

    h3_memo_mix(&k, &identity, sizeof identity);
    return k;
}

static void mix_word(h3_memo_key *k, uint64_t v)
{
    k->a = (k->a ^ v) * 0x100000001b3u; // FNV-1a, by words
    k->a ^= k->a >> 29;
    k->b = (k->b + v) * 0xbf58476d1ce4e5b9u; // splitmix64
    k->b ^= k->b >> 31;
}

void h3_memo_mix(h3_memo_key *k, const void *p, size_t n)
{
    const unsigned char *at = p;
    uint64_t v;

    mix_word(k, n);
    for (; n >= sizeof v; n -= sizeof v, at += sizeof v) {
        memcpy(&v, at, sizeof v);
        mix_word(k, v);
    }
    if (!n) return;
    v = 0;
    memcpy(&v, at, n);
    mix_word(k, v);
}

bool h3_memo_recall(const h3_memo *m, h3_memo_key key, void *out, size_t bytes)
{
    if (!m->data || m->key.a != key.a || m->key.b != key.b || m->bytes != bytes) return false;
    memcpy(out, m->data, bytes);
    return true;
}

void h3_memo_keep(h3_memo *m, h3_memo_key key, const void *data, size_t bytes)
{
    h3_memo_free(m);
    m->data = malloc(bytes ? bytes : 1);
    if (!m->data) return;
    memcpy(m->data, data, bytes);
    m->bytes = bytes;
    m->key = key;
}

void h3_memo_free(h3_memo *m)
{
    free(m->data);
    memset(m, 0, sizeof *m);
}
