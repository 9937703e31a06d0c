/**
 * See targets.h. Files are given to the readers as /proc/self/fd paths of memory files, so nothing
 * is written but the index target's folder. What opens is also used: every matrix that binds
 * decodes its first and last row, because the decoders trust what the readers checked.
 */
#include "targets.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_impl.h"
#include "decode.h"
#include "dit.h"
#include "file.h"
#include "geometry.h"
#include "json.h"
#include "lora.h"
#include "manifest_impl.h"
#include "tokenizer.h"

#define HOSTILE H3_SOURCE_DIR "/tests/data/formats/hostile/"

/* A path to `n` bytes in memory; close *fd afterwards. */
static void memory_file(char path[64], int *fd, const uint8_t *data, size_t n)
{
    *fd = memfd_create("fuzz", 0);
    if (*fd < 0 || (n && write(*fd, data, n) != (ssize_t)n)) abort();
    snprintf(path, 64, "/proc/self/fd/%d", *fd);
}

static void decode_ends(h3_checkpoint *ck)
{
    for (size_t i = 0; i < ck->n_items; i++) {
        h3_item *it = &ck->items[i];
        h3_weight_part part[H3_MAX_PARTS];
        int n;
        if (it->rank == UINT8_MAX || h3_item_parts(ck, it, part, &n) != H3_OK) continue;
        for (int k = 0; k < n; k++) {
            float *row;
            if (part[k].rows < 1 || part[k].cols < 1 || part[k].cols > 1 << 20) continue;
            row = malloc((size_t)part[k].cols * sizeof *row);
            if (!row) abort();
            h3_weight_decode_rows(&part[k], 0, 1, row);
            h3_weight_decode_rows(&part[k], part[k].rows - 1, 1, row);
            free(row);
        }
    }
}

static void use_checkpoint(const char *path)
{
    h3_checkpoint *ck = NULL;
    h3_geometry g;

    if (h3_ckpt_open(&ck, path, H3_ROLE_UNKNOWN, NULL) != H3_OK) return;
    if (h3_geometry_read(&g, ck, NULL) == H3_OK && h3_geometry_dim(&g, "no such size") != -1)
        abort();
    decode_ends(ck);
    h3_ckpt_close(&ck);
}

static void run_checkpoint(const uint8_t *data, size_t n)
{
    char path[64];
    int fd;

    memory_file(path, &fd, data, n);
    use_checkpoint(path);
    close(fd);
}

static void run_gguf(const uint8_t *data, size_t n)
{
    char path[64];
    int fd;
    h3_manifest m = {0}, *heap = calloc(1, sizeof *heap);
    h3_file *f;

    if (!heap) abort();
    *heap = m;
    memory_file(path, &fd, data, n);
    if (h3_file_map(&f, path) == H3_OK && h3_gguf_read(heap, f) == H3_OK &&
        h3_manifest_seal(heap) == H3_OK)
        use_checkpoint(path);
    h3_manifest_close(&heap);
    close(fd);
}

/* The folder of the index target holds one good shard; its index is written anew each time. */
static const char *index_folder(void)
{
    static char dir[64];
    char *shard;
    size_t n;
    FILE *fp;

    if (*dir) return dir;
    snprintf(dir, sizeof dir, "%s/h3-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir)) abort();
    if (h3_file_read(&shard, &n, HOSTILE "ix-valid/model-00001-of-00001.safetensors", 1 << 20) !=
        H3_OK)
        abort();
    char *path = h3_path_join(dir, "model-00001-of-00001.safetensors");
    fp = fopen(path, "wb");
    if (!fp || fwrite(shard, 1, n, fp) != n || fclose(fp) != 0) abort();
    free(path);
    free(shard);
    return dir;
}

static void run_index(const uint8_t *data, size_t n)
{
    char *path = h3_path_join(index_folder(), "model.safetensors.index.json");
    FILE *fp = fopen(path, "wb");
    h3_manifest *m = NULL;

    if (!fp || fwrite(data, 1, n, fp) != n || fclose(fp) != 0) abort();
    if (h3_manifest_open(&m, path) == H3_OK) h3_manifest_close(&m);
    free(path);
}

static void run_config(const uint8_t *data, size_t n)
{
    json_t *j = NULL;
    h3_dit_config c;

    if (h3_json_parse(&j, (const char *)data, n, "config.json") != H3_OK) return;
    if (h3_dit_config_parse(&c, j, "config.json") == H3_OK && c.hidden < 1) abort();
    json_decref(j);
}

static void run_lora(const uint8_t *data, size_t n)
{
    char path[64];
    int fd;
    h3_checkpoint *ck = NULL;
    h3_lora_report rep = {0};
    h3_dev *d;
    h3_weight w;
    float row[64];

    if (h3_dev_open(&d, "ref", NULL) != H3_OK ||
        h3_ckpt_open(&ck, HOSTILE "dt-valid.safetensors", H3_ROLE_DIT, NULL) != H3_OK)
        abort();
    memory_file(path, &fd, data, n);
    if (h3_ckpt_add_lora(ck, path, NULL, &rep) == H3_OK) {
        free(rep.unmatched);
        if (h3_ckpt_matrix(ck, d, &w, "blocks.0.attn.out_proj", 16, 16, false) != H3_OK) abort();
        h3_weight_rows(&w, 15, 1, row);
        if (h3_ckpt_matrix(ck, d, &w, "blocks.0.attn.qkv_proj", 48, 16, false) != H3_OK) abort();
        h3_weight_rows(&w, 46, 2, row);
    }
    close(fd);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
}

static void run_tokenizer(const uint8_t *data, size_t n)
{
    char dir[80], *path;
    FILE *fp;
    h3_tok *t = NULL;
    h3_tok_ids ids = {0};

    snprintf(dir, sizeof dir, "%s/tok", index_folder());
    mkdir(dir, 0700);
    path = h3_path_join(dir, "tokenizer.json");
    fp = fopen(path, "wb");
    if (!fp || fwrite(data, 1, n, fp) != n || fclose(fp) != 0) abort();
    if (h3_tok_open(&t, path) == H3_OK) {
        if (h3_tok_encode(t, &ids, "hello \xc3\xa9 1", 10) != H3_OK) ids.n = 0;
        h3_tok_ids_free(&ids);
        h3_tok_free(&t);
    }
    free(path);
}

const fuzz_target fuzz_targets[] = {
    {"safetensors", run_checkpoint, "st-", NULL},
    {"dit", run_checkpoint, "dt-", NULL},
    {"gguf", run_gguf, "gg-", NULL},
    {"index", run_index, "ix-", "model.safetensors.index.json"},
    {"config", run_config, "cf-", NULL},
    {"lora", run_lora, "lo-", NULL},
    {"tokenizer", run_tokenizer, "tk-", NULL},
};
const size_t n_fuzz_targets = sizeof fuzz_targets / sizeof *fuzz_targets;
