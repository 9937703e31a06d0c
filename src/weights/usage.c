/** What a bound checkpoint takes in memory; see h3_ckpt_usage. Read by the memory plan. */
#include <string.h>

#include "checkpoint_impl.h"

static void add_item(h3_ckpt_use *u, const h3_item *it)
{
    size_t bytes = 0;
    int64_t cols = 1;

    if (!it->made) // a computed matrix no longer needs the stored one
        for (int i = 0; i < it->n_src; i++)
            bytes += h3_source_bytes(&it->src[i]);
    bytes -= it->expanded_from < bytes ? it->expanded_from : bytes;
    u->expanded += it->expanded_bytes;
    for (int i = 1; i < it->rank; i++)
        cols *= it->ne[i];
    u->matrices += bytes;
    if (cols > u->cols) u->cols = cols;
    if (cols * it->ne[0] > u->largest) u->largest = cols * it->ne[0];
}

h3_ckpt_use h3_ckpt_usage(const h3_checkpoint *ck, const char *pattern)
{
    h3_ckpt_use u = {0};

    for (size_t i = 0; i < ck->n_items; i++) {
        const h3_item *it = &ck->items[i];
        if (it->is_used && (!pattern || h3_name_match(pattern, it->name))) add_item(&u, it);
    }
    if (pattern) return u;
    u.owned = ck->keep.bytes + ck->planned_bytes + ck->cap_items * sizeof *ck->items +
              ck->cap_vectors * sizeof *ck->vectors +
              (size_t)h3_manifest_count(ck->m) * (sizeof(h3_entry) + 96); // names and their index
    for (size_t i = 0; i < ck->n_vectors; i++)
        u.vectors += (size_t)h3_numel(ck->vectors[i].t) * sizeof(float);
    return u;
}

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u; // FNV-1a
    return h;
}

static uint64_t mix_files(uint64_t h, const h3_manifest *m)
{
    for (uint32_t i = 0; i < h3_manifest_n_files(m); i++)
        h = mix(h, &h3_manifest_file(m, i)->mark, sizeof(uint64_t));
    return h;
}

uint64_t h3_ckpt_identity(const h3_checkpoint *ck)
{
    uint64_t h = mix_files(h3_ckpt_fingerprint(ck), ck->m);

    for (size_t i = 0; i < ck->n_adapters; i++)
        h = mix_files(h, h3_adapter_files(ck->adapters[i]));
    for (size_t i = 0; i < ck->n_marked; i++)
        h = mix(h, &ck->marked[i].mark, sizeof ck->marked[i].mark);
    return h;
}

uint64_t h3_ckpt_fingerprint(const h3_checkpoint *ck)
{
    uint64_t h = 0xcbf29ce484222325u;
    const int64_t n = h3_manifest_count(ck->m);

    for (int64_t i = 0; i < n; i++) {
        const h3_entry *e = h3_manifest_at(ck->m, i);
        const size_t take = e->bytes < 16 ? e->bytes : 16;
        h = mix(h, e->name, strlen(e->name));
        h = mix(h, &e->bytes, sizeof e->bytes);
        if (take) h = mix(h, e->data + (e->bytes - take) / 2, take);
    }
    h = mix(h, &ck->qkv, sizeof ck->qkv);
    return h;
}
