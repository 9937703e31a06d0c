/** The memory plan as a verdict, as JSON and as text; see fit.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "fit.h"

static const char *const kind_names[H3_FIT_KINDS] = {"host", "device", "pinned", "mapped", "disk"};

/* What makes a phase smaller, in the order of h3_fit_name. */
static const char *const smaller[H3_FIT_PHASES] = {
    "a shorter prompt, or fewer, smaller or shorter --ref",
    "fewer, smaller or shorter --ref, or a smaller --size",
    "fewer --frames, a smaller --size or --dtype bf16",
    "fewer --frames",
    "a smaller --size or --preset-x264 veryfast",
    "a smaller --size or --preset-x264 veryfast",
};

/* "1.25 GB"; powers of 1024, as the options take them. */
static const char *size_text(char out[24], size_t bytes)
{
    const double b = (double)bytes;

    if (bytes < (size_t)1 << 20)
        snprintf(out, 24, "%.0f kB", b / 1024);
    else if (bytes < (size_t)1 << 30)
        snprintf(out, 24, "%.1f MB", b / 1048576);
    else
        snprintf(out, 24, "%.2f GB", b / 1073741824);
    return out;
}

/* ------------------------------------------------------------------------------------- verdict */

/* Beyond what is held now; media that are gone by then make room. */
static size_t host_need(const h3_fit_phase *p)
{
    const size_t n = p->sum[H3_FIT_HOST] + p->sum[H3_FIT_PINNED];
    return n > p->released ? n - p->released : 0;
}

static size_t least_device(const h3_fit_phase *p)
{
    return p->sum[H3_FIT_DEVICE] +
           (p->ring < p->sum[H3_FIT_MAPPED] ? p->ring : p->sum[H3_FIT_MAPPED]);
}

/* The two largest rows of a kind, "a 1.0 GB, b 2.0 GB". */
static void name_rows(char *out, size_t cap, const h3_fit_phase *p, h3_fit_kind kind)
{
    const h3_fit_row *top[2] = {NULL, NULL};
    char a[24], b[24];

    for (int i = 0; i < p->n_rows; i++) {
        const h3_fit_row *r = &p->row[i];
        if (r->kind != kind) continue;
        if (!top[0] || r->bytes > top[0]->bytes) {
            top[1] = top[0];
            top[0] = r;
        } else if (!top[1] || r->bytes > top[1]->bytes) {
            top[1] = r;
        }
    }
    out[0] = '\0';
    if (top[0])
        snprintf(out, cap, " (%s %s%s%s%s%s)", top[0]->name, size_text(a, top[0]->bytes),
                 top[1] ? ", " : "", top[1] ? top[1]->name : "", top[1] ? " " : "",
                 top[1] ? size_text(b, top[1]->bytes) : "");
}

static h3_status refuse_host(const h3_fit_table *f, int i)
{
    const h3_fit_phase *p = &f->phase[i];
    char need[24], room[24], rows[160];

    name_rows(rows, sizeof rows, p, H3_FIT_HOST);
    return h3_fail(
        H3_E_NOMEM,
        "phase %s does not fit: it needs %s of memory%s, and %s are free (%s); %s makes it "
        "smaller",
        p->name, size_text(need, host_need(p)), rows, size_text(room, f->room.ram_free),
        f->room.ram_by, smaller[i]);
}

static h3_status refuse_device(const h3_fit_table *f, int i)
{
    const h3_fit_phase *p = &f->phase[i];
    char need[24], room[24], ring[24], rows[160];

    name_rows(rows, sizeof rows, p, H3_FIT_DEVICE);
    return h3_fail(
        H3_E_NOMEM,
        "phase %s does not fit: it needs %s of device memory%s with its weights streamed "
        "(%s), and %s are free (%s); %s makes it smaller",
        p->name, size_text(need, least_device(p)), rows, size_text(ring, p->ring),
        size_text(room, f->room.vram_free), f->room.vram_by, smaller[i]);
}

h3_status h3_fit_check(const h3_fit_table *f)
{
    for (int i = 0; i < H3_FIT_PHASES; i++) {
        const h3_fit_phase *p = &f->phase[i];
        char need[24], room[24];
        if (!p->is_used) continue;
        if (host_need(p) > f->room.ram_free) return refuse_host(f, i);
        if (f->room.has_device && least_device(p) > f->room.vram_free) return refuse_device(f, i);
        if (p->sum[H3_FIT_DISK] > f->room.disk_free)
            return h3_fail(H3_E_IO,
                           "phase %s does not fit: its files need %s, and %s are free in %s; write "
                           "elsewhere with --output, --latents or --frames-dir",
                           p->name, size_text(need, p->sum[H3_FIT_DISK]),
                           size_text(room, f->room.disk_free), f->room.disk_path);
    }
    return H3_OK;
}

size_t h3_fit_budget(const h3_fit_table *f, h3_fit_name phase)
{
    const h3_fit_phase *p = &f->phase[phase];
    const bool on_device = f->room.has_device;
    const size_t total = on_device ? f->room.vram_free : f->room.ram_free;
    const size_t need = on_device ? p->sum[H3_FIT_DEVICE] : host_need(p);
    const size_t spare = total / 16; // what a plan cannot know
    const size_t left = total > need + spare ? total - need - spare : 1;

    if (p->sum[H3_FIT_MAPPED] <= left) return 0;
    return left > p->ring ? left : p->ring;
}

/* ---------------------------------------------------------------------------------------- JSON */

static json_t *rows_json(const h3_fit_phase *p)
{
    json_t *list = json_array();

    for (int i = 0; i < p->n_rows; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "name", p->row[i].name, "kind",
                                              kind_names[p->row[i].kind], "bytes",
                                              (json_int_t)p->row[i].bytes));
    return list;
}

static json_t *phase_json(const h3_fit_table *f, int i)
{
    const h3_fit_phase *p = &f->phase[i];
    json_t *o = json_pack("{s:s}", "phase", p->name);

    for (int k = 0; k < H3_FIT_KINDS; k++)
        json_object_set_new(o, kind_names[k], json_integer((json_int_t)p->sum[k]));
    json_object_set_new(o, "released", json_integer((json_int_t)p->released));
    json_object_set_new(o, "weights_at_least", json_integer((json_int_t)p->ring));
    json_object_set_new(o, "weight_budget", json_integer((json_int_t)p->budget));
    if (p->spread) json_object_set_new(o, "weights_spread", json_integer((json_int_t)p->spread));
    json_object_set_new(o, "rows", rows_json(p));
    return o;
}

static json_t *room_json(const h3_fit_room *r)
{
    json_t *o = json_pack("{s:I, s:I, s:I, s:s}", "held", (json_int_t)r->held, "ram_total",
                          (json_int_t)r->ram_total, "ram_free", (json_int_t)r->ram_free,
                          "ram_limited_by", r->ram_by);

    if (r->has_device) {
        json_object_set_new(o, "vram_total", json_integer((json_int_t)r->vram_total));
        json_object_set_new(o, "vram_free", json_integer((json_int_t)r->vram_free));
        json_object_set_new(o, "vram_limited_by", json_string(r->vram_by));
    }
    if (r->disk_free != SIZE_MAX)
        json_object_set_new(o, "disk_free", json_integer((json_int_t)r->disk_free));
    return o;
}

json_t *h3_fit_json(const h3_fit_table *f)
{
    json_t *phases = json_array(), *o;
    const h3_status st = h3_fit_check(f);

    for (int i = 0; i < H3_FIT_PHASES; i++)
        if (f->phase[i].is_used) json_array_append_new(phases, phase_json(f, i));
    o = json_pack("{s:o, s:o, s:b}", "phases", phases, "free", room_json(&f->room), "fits",
                  st == H3_OK);
    if (f->ranks > 1) json_object_set_new(o, "ranks", json_integer(f->ranks));
    if (st != H3_OK) json_object_set_new(o, "why", json_string(h3_error()));
    if (f->quant.stored)
        json_object_set_new(o, "quantized",
                            json_pack("{s:s, s:I, s:I, s:s}", "choice",
                                      f->quant.is_expanded ? "expand" : "keep", "stored",
                                      (json_int_t)f->quant.stored, "expanded",
                                      (json_int_t)f->quant.expanded, "reason", f->quant.why));
    return o;
}

/* ---------------------------------------------------------------------------------------- text */

static char *append(char *text, const char *more)
{
    char *longer = h3_strdupf("%s%s", text ? text : "", more);
    free(text);
    return longer;
}

/* Weights that stream although several ranks could hold them together. */
static const char *spread_hint(char out[64], const h3_fit_phase *p)
{
    char a[24];

    snprintf(out, 64, "; --offload ranks: %s on each", size_text(a, p->spread));
    return out;
}

static char *append_phase(char *text, const h3_fit_table *f, int i)
{
    const h3_fit_phase *p = &f->phase[i];
    const size_t budget = p->budget;
    char line[320], a[24], b[24], c[24], device[64] = "", weights[160] = "";

    char hint[64];
    if (f->room.has_device)
        snprintf(device, sizeof device, ", device %s", size_text(a, p->sum[H3_FIT_DEVICE]));
    if (p->sum[H3_FIT_MAPPED] && budget)
        snprintf(weights, sizeof weights, ", weights %s (%s %s%s)",
                 size_text(b, p->sum[H3_FIT_MAPPED]), size_text(c, budget),
                 p->is_spread ? "on each rank" : "at a time",
                 p->spread && !p->is_spread ? spread_hint(hint, p) : "");
    else if (p->sum[H3_FIT_MAPPED])
        snprintf(weights, sizeof weights, ", weights %s", size_text(b, p->sum[H3_FIT_MAPPED]));
    char host[24], disk[24], files[48] = "";
    if (p->sum[H3_FIT_DISK])
        snprintf(files, sizeof files, ", files %s", size_text(disk, p->sum[H3_FIT_DISK]));
    snprintf(line, sizeof line, "  %-6s memory %s%s%s%s\n", p->name, size_text(host, host_need(p)),
             device, weights, files);
    return append(text, line);
}

char *h3_fit_text(const h3_fit_table *f)
{
    char line[256], a[24], b[24], *text;

    char ranks[48] = "";

    if (f->ranks > 1) snprintf(ranks, sizeof ranks, " of each of %d ranks", f->ranks);
    snprintf(line, sizeof line, "memory%s: %s free (%s), %s held\n", ranks,
             size_text(a, f->room.ram_free), f->room.ram_by, size_text(b, f->room.held));
    text = append(NULL, line);
    for (int i = 0; i < H3_FIT_PHASES; i++)
        if (f->phase[i].is_used) text = append_phase(text, f, i);
    if (f->quant.stored) {
        snprintf(line, sizeof line, "quantized weights: %s, %s (%s %s): %s\n",
                 f->quant.is_expanded ? "decoded at load" : "kept as stored",
                 size_text(a, f->quant.is_expanded ? f->quant.expanded : f->quant.stored),
                 f->quant.is_expanded ? "stored" : "decoded",
                 size_text(b, f->quant.is_expanded ? f->quant.stored : f->quant.expanded),
                 f->quant.why);
        text = append(text, line);
    }
    return text;
}
