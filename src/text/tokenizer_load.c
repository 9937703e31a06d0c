/**
 * Tokenizer files to tables.
 *
 *   tokenizer.json          everything; merges as "a b" (the release) or as ["a", "b"] (newer
 * writers) vocab.json, merges.txt  the same vocabulary and merges, apart tokenizer_config.json more
 * added tokens: "added_tokens_decoder" with ids, the special-token fields by content. The seven H3
 * dialogue tokens stand only there.
 *
 * What the files say about the algorithm is compared with what this room implements and refused
 * where it differs; nothing is guessed. Ids and references are checked while they are filed, so the
 * encoder never meets an id without a token or a byte without an id. A JSON object is first indexed
 * (where the value of each known key lies) and then read in the order we need: merges before the
 * vocabulary in the file is fine.
 */
#include "tokenizer_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "grow.h"
#include "json_pull.h"
#include "split.h"
#include "unicode.h"

enum { MAX_FILE_BYTES = 64 << 20 }; // a released tokenizer.json has 7 or 11 MB

/* ---- showing names ----------------------------------------------------------------------------
 */

typedef struct shown {
    char text[72];
} shown;

/* A token for a message: at most 64 bytes, cut between characters. */
static shown show(h3_pull_str s)
{
    shown out;
    size_t n = s.n <= 64 ? s.n : 64;

    while (n < s.n && n > 0 && ((unsigned char)s.p[n] & 0xc0) == 0x80)
        n--;
    snprintf(out.text, sizeof out.text, "%.*s%s", (int)n, s.p, n < s.n ? "..." : "");
    return out;
}

static h3_pull_str string_of(const h3_tok *t, int32_t id)
{
    return (h3_pull_str){t->pool + t->str[id].at, t->str[id].n};
}

/* ---- hashing ----------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static uint64_t hash_string(const char *s, size_t n)
{
    uint64_t h = n, v;

    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&v, s, 8);
        h = mix(h ^ v);
    }
    v = 0;
    memcpy(&v, s, n);
    return mix(h ^ v);
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    return mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

static bool is_string(const h3_tok *t, int32_t id, const char *s, size_t n)
{
    return t->str[id].n == n && memcmp(t->pool + t->str[id].at, s, n) == 0;
}

int32_t h3_tok_find_n(const h3_tok *t, const char *s, size_t n)
{
    if (!t->slot) return -1;
    for (size_t i = (size_t)hash_string(s, n) & t->slot_mask; t->slot[i];
         i = (i + 1) & t->slot_mask)
        if (is_string(t, (int32_t)t->slot[i] - 1, s, n)) return (int32_t)t->slot[i] - 1;
    return -1;
}

const h3_tok_merge *h3_tok_find_merge(const h3_tok *t, int32_t left, int32_t right, uint32_t *rank)
{
    if (!t->pair) return NULL;
    for (size_t i = (size_t)hash_pair(left, right) & t->pair_mask; t->pair[i];
         i = (i + 1) & t->pair_mask) {
        const h3_tok_merge *m = &t->merge[t->pair[i] - 1];
        if (m->left == left && m->right == right) {
            *rank = t->pair[i] - 1;
            return m;
        }
    }
    return NULL;
}

/* A table of `n_slots` (a power of two) with every string of t in it. */
static h3_status rehash_strings(h3_tok *t, size_t n_slots)
{
    uint32_t *slot = calloc(n_slots, sizeof *slot);

    if (!slot) return h3_fail(H3_E_NOMEM, "no memory for %zu tokens", n_slots);
    free(t->slot);
    t->slot = slot;
    t->slot_mask = n_slots - 1;
    for (size_t id = 0; id < t->n_ids; id++) {
        const h3_tok_str s = t->str[id];
        if (!s.n) continue;
        size_t i = (size_t)hash_string(t->pool + s.at, s.n) & t->slot_mask;
        while (slot[i])
            i = (i + 1) & t->slot_mask;
        slot[i] = (uint32_t)id + 1;
    }
    return H3_OK;
}

/* ---- filing tokens ----------------------------------------------------------------------------
 */

/* Files a new string under a new id; both must be free (checked by the callers, who know the
 * words). */
static h3_status file_token(h3_tok *t, h3_pull_str s, int32_t id)
{
    const size_t old = t->str_cap;

    H3_TRY(h3_grow(&t->str, &t->str_cap, (size_t)id + 1, sizeof *t->str));
    if (t->str_cap > old) memset(t->str + old, 0, (t->str_cap - old) * sizeof *t->str);
    H3_TRY(h3_grow(&t->pool, &t->pool_cap, t->pool_n + s.n, 1));
    memcpy(t->pool + t->pool_n, s.p, s.n);
    t->str[id] = (h3_tok_str){.at = (uint32_t)t->pool_n, .n = (uint32_t)s.n & 0x7fffffff};
    t->pool_n += s.n;
    if ((size_t)id >= t->n_ids) t->n_ids = (size_t)id + 1;
    t->n_strings++;
    if (!t->slot || t->n_strings * 2 > t->slot_mask)
        return rehash_strings(t, t->slot ? (t->slot_mask + 1) * 2 : 1024);
    size_t i = (size_t)hash_string(s.p, s.n) & t->slot_mask;
    while (t->slot[i])
        i = (i + 1) & t->slot_mask;
    t->slot[i] = (uint32_t)id + 1;
    return H3_OK;
}

static bool has_id(const h3_tok *t, int64_t id)
{
    return id >= 0 && (size_t)id < t->n_ids && t->str[id].n;
}

static h3_status check_id(const char *where, h3_pull_str s, int64_t id, bool is_int)
{
    if (!is_int)
        return h3_fail(H3_E_FORMAT, "%s: the id of token '%s' is no integer that fits", where,
                       show(s).text);
    if (id < 0 || id >= H3_TOK_MAX_IDS)
        return h3_fail(H3_E_FORMAT, "%s: token '%s' has id %lld, expected 0 to %d", where,
                       show(s).text, (long long)id, H3_TOK_MAX_IDS - 1);
    return H3_OK;
}

/* {"token": id, ...} at the cursor. */
static h3_status read_vocab(h3_tok *t, h3_pull *j)
{
    h3_pull_str s;
    h3_bytes copy = {0}; // a key with an escape lives in a buffer that the value may reuse
    bool more, is_int;
    int64_t id;
    h3_status st;

    H3_TRY(h3_pull_open(j, '{', "an object, vocab,"));
    while ((st = h3_pull_key(j, &s, &more)) == H3_OK && more) {
        copy.n = 0;
        if (s.p == j->text && (st = h3_bytes_add(&copy, s.p, s.n)) != H3_OK) break;
        if (s.p == j->text) s.p = copy.p;
        if ((st = h3_pull_int(j, &id, &is_int)) != H3_OK) break;
        if ((st = check_id("vocab", s, id, is_int)) != H3_OK) break;
        const int32_t twin = h3_tok_find_n(t, s.p, s.n);
        if (s.n == 0)
            st = h3_fail(H3_E_FORMAT, "vocab: the token with id %lld is empty", (long long)id);
        else if (twin >= 0)
            st = h3_fail(H3_E_FORMAT, "vocab: token '%s' stands twice, with ids %d and %lld",
                         show(s).text, (int)twin, (long long)id);
        else if (has_id(t, id))
            st = h3_fail(H3_E_FORMAT, "vocab: tokens '%s' and '%s' both have id %lld",
                         show(string_of(t, (int32_t)id)).text, show(s).text, (long long)id);
        else
            st = file_token(t, s, (int32_t)id);
        if (st != H3_OK) break;
    }
    free(copy.p);
    return st;
}

/* The printable stand-in of each byte (GPT-2's): itself where it prints, else the next one from
 * U+0100. */
static h3_status find_bytes(h3_tok *t)
{
    uint32_t next = 0x100;

    memset(t->alphabet_byte, 0xff, sizeof t->alphabet_byte);
    for (int b = 0; b < 256; b++) {
        const bool prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        const uint32_t cp = prints ? (uint32_t)b : next++;
        char s[4];
        const size_t n = h3_utf8_put(s, cp);
        t->alphabet_byte[cp] = (int16_t)b;
        t->byte_id[b] = h3_tok_find_n(t, s, n);
        if (t->byte_id[b] < 0)
            return h3_fail(H3_E_FORMAT, "vocab: byte 0x%02x has no token ('%.*s' is missing)", b,
                           (int)n, s);
    }
    return H3_OK;
}

/* ---- merges -----------------------------------------------------------------------------------
 */

static h3_status merge_part(const h3_tok *t, h3_pull_str s, size_t rank, int32_t *id)
{
    *id = s.n ? h3_tok_find_n(t, s.p, s.n) : -1;
    if (*id >= 0) return H3_OK;
    return h3_fail(H3_E_FORMAT, "merges: entry %zu: '%s' is no token of the vocab", rank,
                   show(s).text);
}

static h3_status add_merge(h3_tok *t, h3_bytes *joined, int32_t left, int32_t right)
{
    const h3_pull_str a = string_of(t, left), b = string_of(t, right);

    joined->n = 0;
    H3_TRY(h3_bytes_add(joined, a.p, a.n));
    H3_TRY(h3_bytes_add(joined, b.p, b.n));
    const int32_t id = h3_tok_find_n(t, joined->p, joined->n);
    if (id < 0)
        return h3_fail(H3_E_FORMAT, "merges: entry %zu: '%s' + '%s' gives no token of the vocab",
                       t->n_merges, show(a).text, show(b).text);
    H3_TRY(h3_grow(&t->merge, &t->merge_cap, t->n_merges + 1, sizeof *t->merge));
    t->merge[t->n_merges++] = (h3_tok_merge){left, right, id};
    return H3_OK;
}

/* "left right". */
static h3_status add_merge_line(h3_tok *t, h3_bytes *joined, h3_pull_str s)
{
    const char *gap = memchr(s.p, ' ', s.n);
    const size_t n = gap ? (size_t)(gap - s.p) : 0;
    int32_t left, right;

    if (!gap || memchr(gap + 1, ' ', s.n - n - 1))
        return h3_fail(H3_E_FORMAT, "merges: entry %zu, '%s', is not two parts with one blank",
                       t->n_merges, show(s).text);
    H3_TRY(merge_part(t, (h3_pull_str){s.p, n}, t->n_merges, &left));
    H3_TRY(merge_part(t, (h3_pull_str){gap + 1, s.n - n - 1}, t->n_merges, &right));
    return add_merge(t, joined, left, right);
}

/* ["left", "right"] at the cursor. */
static h3_status add_merge_pair(h3_tok *t, h3_bytes *joined, h3_pull *j)
{
    int32_t id[2];
    int n = 0;
    bool more;

    H3_TRY(h3_pull_open(j, '[', "a merge"));
    for (;;) {
        h3_pull_str s;
        H3_TRY(h3_pull_item(j, &more));
        if (!more) break;
        if (n == 2 || h3_pull_peek(j) != '"')
            return h3_fail(H3_E_FORMAT, "merges: entry %zu is not two strings", t->n_merges);
        H3_TRY(h3_pull_string(j, &s, "a merge"));
        H3_TRY(merge_part(t, s, t->n_merges, &id[n++]));
    }
    if (n != 2) return h3_fail(H3_E_FORMAT, "merges: entry %zu has %d parts", t->n_merges, n);
    return add_merge(t, joined, id[0], id[1]);
}

/* [merge, ...] at the cursor, each of either form. */
static h3_status read_merges(h3_tok *t, h3_pull *j)
{
    h3_bytes joined = {0};
    h3_pull_str s;
    bool more;
    h3_status st;

    if (h3_pull_peek(j) != '[') return h3_fail(H3_E_FORMAT, "merges: is no array");
    H3_TRY(h3_pull_open(j, '[', "merges"));
    while ((st = h3_pull_item(j, &more)) == H3_OK && more) {
        const char kind = h3_pull_peek(j);
        if (kind == '[')
            st = add_merge_pair(t, &joined, j);
        else if (kind != '"')
            st = h3_fail(H3_E_FORMAT, "merges: entry %zu is neither a string nor a pair",
                         t->n_merges);
        else if ((st = h3_pull_string(j, &s, "a merge")) == H3_OK)
            st = add_merge_line(t, &joined, s);
        if (st != H3_OK) break;
    }
    free(joined.p);
    return st;
}

/* Indexes the merges by pair. A pair with two ranks would make the ids depend on the reader. */
static h3_status index_merges(h3_tok *t)
{
    size_t n = 16;

    while (n < t->n_merges * 2)
        n *= 2;
    t->pair = calloc(n, sizeof *t->pair);
    if (!t->pair) return h3_fail(H3_E_NOMEM, "merges: no memory for %zu entries", t->n_merges);
    t->pair_mask = n - 1;
    for (size_t r = 0; r < t->n_merges; r++) {
        const h3_tok_merge m = t->merge[r];
        size_t i = (size_t)hash_pair(m.left, m.right) & t->pair_mask;
        for (; t->pair[i]; i = (i + 1) & t->pair_mask) {
            const h3_tok_merge *o = &t->merge[t->pair[i] - 1];
            if (o->left == m.left && o->right == m.right)
                return h3_fail(H3_E_FORMAT,
                               "merges: entries %u and %zu are the same pair, '%s' + '%s'",
                               (unsigned)t->pair[i] - 1, r, show(string_of(t, m.left)).text,
                               show(string_of(t, m.right)).text);
        }
        t->pair[i] = (uint32_t)r + 1;
    }
    return H3_OK;
}

/* ---- added tokens -----------------------------------------------------------------------------
 */

/* Takes `s` as an added token. `id` is -1 for "after the last one". Saying the same twice is
 * allowed: tokenizer_config.json repeats what tokenizer.json says. */
static h3_status add_added(h3_tok *t, const char *where, h3_pull_str s, int64_t id)
{
    if (s.n == 0) return h3_fail(H3_E_FORMAT, "%s: an added token is empty", where);
    const int32_t known = h3_tok_find_n(t, s.p, s.n);
    if (id < 0) id = known >= 0 ? known : (int64_t)t->n_ids;
    H3_TRY(check_id(where, s, id, true));
    if (known >= 0 && known != id)
        return h3_fail(H3_E_FORMAT, "%s: token '%s' has id %lld, but also %d", where, show(s).text,
                       (long long)id, (int)known);
    if (known < 0 && has_id(t, id))
        return h3_fail(H3_E_FORMAT, "%s: token '%s' takes id %lld of token '%s'", where,
                       show(s).text, (long long)id, show(string_of(t, (int32_t)id)).text);
    if (known < 0) H3_TRY(file_token(t, s, (int32_t)id));
    if (t->str[id].is_added) return H3_OK;
    t->str[id].is_added = 1;
    H3_TRY(h3_grow(&t->added, &t->added_cap, t->n_added + 1, sizeof *t->added));
    t->added[t->n_added++] = (int32_t)id;
    return H3_OK;
}

typedef struct added_entry {
    h3_bytes content;
    bool has_content, has_id, id_is_int;
    int64_t id;
} added_entry;

/* The matching rules beyond "cut out exactly this text" that a file may ask for. */
static h3_status refuse_flag(h3_pull *j, const char *where, h3_pull_str key)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool on, ok;
        if (!h3_pull_is(key, flags[i])) continue;
        H3_TRY(h3_pull_bool(j, &on, &ok));
        if (ok && !on) return H3_OK;
        return h3_fail(ok ? H3_E_UNSUPPORTED : H3_E_FORMAT, "%s: \"%s\" of a token is %s", where,
                       flags[i], ok ? "true, only literal tokens are supported" : "no truth value");
    }
    return h3_pull_skip(j);
}

/* {"content": ..., "id": ..., flags} at the cursor. */
static h3_status read_added_entry(h3_pull *j, const char *where, added_entry *e)
{
    h3_pull_str key, s;
    bool more;

    if (h3_pull_peek(j) != '{') return h3_fail(H3_E_FORMAT, "%s: an entry is no object", where);
    H3_TRY(h3_pull_open(j, '{', "an added token"));
    e->has_content = e->has_id = false;
    e->content.n = 0;
    for (;;) {
        H3_TRY(h3_pull_key(j, &key, &more));
        if (!more) return H3_OK;
        if (h3_pull_is(key, "content")) {
            if (e->has_content || h3_pull_peek(j) != '"')
                return h3_fail(H3_E_FORMAT, "%s: an entry needs one string \"content\"", where);
            H3_TRY(h3_pull_string(j, &s, "a string"));
            H3_TRY(h3_bytes_add(&e->content, s.p, s.n));
            e->has_content = true;
        } else if (h3_pull_is(key, "id")) {
            if (e->has_id) return h3_fail(H3_E_FORMAT, "%s: an entry has two ids", where);
            H3_TRY(h3_pull_int(j, &e->id, &e->id_is_int));
            e->has_id = true;
        } else {
            H3_TRY(refuse_flag(j, where, key));
        }
    }
}

/* tokenizer.json: [{"id": ..., "content": ...}, ...] at the cursor. */
static h3_status read_added_list(h3_tok *t, h3_pull *j)
{
    static const char where[] = "added_tokens";
    added_entry e = {0};
    bool more;
    h3_status st;

    if (h3_pull_peek(j) == 'n') return h3_pull_skip(j);
    if (h3_pull_peek(j) != '[') return h3_fail(H3_E_FORMAT, "%s: is no array", where);
    H3_TRY(h3_pull_open(j, '[', where));
    while ((st = h3_pull_item(j, &more)) == H3_OK && more) {
        if ((st = read_added_entry(j, where, &e)) != H3_OK) break;
        const h3_pull_str s = {e.content.p, e.content.n};
        if (!e.has_content)
            st = h3_fail(H3_E_FORMAT, "%s: an entry has no content", where);
        else if (!e.has_id)
            st = h3_fail(H3_E_FORMAT, "%s: token '%s' has no id", where, show(s).text);
        else if ((st = check_id(where, s, e.id, e.id_is_int)) == H3_OK)
            st = add_added(t, where, s, e.id);
        if (st != H3_OK) break;
    }
    free(e.content.p);
    return st;
}

/* tokenizer_config.json: {"151669": {"content": ...}, ...} at the cursor. */
static h3_status read_added_decoder(h3_tok *t, h3_pull *j)
{
    static const char where[] = "added_tokens_decoder";
    added_entry e = {0};
    h3_pull_str key;
    bool more;
    h3_status st;

    if (h3_pull_peek(j) == 'n') return h3_pull_skip(j);
    if (h3_pull_peek(j) != '{') return h3_fail(H3_E_FORMAT, "%s: is no object", where);
    H3_TRY(h3_pull_open(j, '{', where));
    while ((st = h3_pull_key(j, &key, &more)) == H3_OK && more) {
        int64_t id = 0;
        bool is_id = key.n > 0 && key.n <= 10;
        for (size_t i = 0; i < key.n && is_id; i++) {
            is_id = key.p[i] >= '0' && key.p[i] <= '9';
            id = id * 10 + (key.p[i] - '0');
        }
        if (!is_id) {
            st = h3_fail(H3_E_FORMAT, "%s: '%s' is no token id", where, show(key).text);
            break;
        }
        if ((st = read_added_entry(j, where, &e)) != H3_OK) break;
        st = e.has_content
                 ? add_added(t, where, (h3_pull_str){e.content.p, e.content.n}, id)
                 : h3_fail(H3_E_FORMAT, "%s: entry %lld has no content", where, (long long)id);
        if (st != H3_OK) break;
    }
    free(e.content.p);
    return st;
}

/* A token named by content alone: "text" or {"content": "text"}; null is none. */
static h3_status read_special(h3_tok *t, h3_pull *j, const char *where)
{
    added_entry e = {0};
    h3_pull_str s = {0};
    h3_status st;

    switch (h3_pull_peek(j)) {
    case 'n':
        return h3_pull_skip(j);
    case '"':
        H3_TRY(h3_pull_string(j, &s, where));
        return add_added(t, where, s, -1);
    default:
        break;
    }
    if ((st = read_added_entry(j, where, &e)) == H3_OK)
        st = e.has_content ? add_added(t, where, (h3_pull_str){e.content.p, e.content.n}, -1)
                           : h3_fail(H3_E_FORMAT, "%s: an entry has no content", where);
    free(e.content.p);
    return st;
}

/* A list of such, or an object of such under names of their own. */
static h3_status read_specials(h3_tok *t, h3_pull *j, const char *where)
{
    const char kind = h3_pull_peek(j);
    h3_pull_str key;
    bool more;

    if (kind != '[' && kind != '{')
        return kind == 'n' ? h3_pull_skip(j) : h3_fail(H3_E_FORMAT, "%s: is no list", where);
    H3_TRY(h3_pull_open(j, kind, where));
    for (;;) {
        H3_TRY(kind == '{' ? h3_pull_key(j, &key, &more) : h3_pull_item(j, &more));
        if (!more) return H3_OK;
        H3_TRY(read_special(t, j, where));
    }
}

typedef struct by_bytes {
    const char *p;
    size_t n;
    int32_t id;
} by_bytes;

static int compare_bytes(const void *a, const void *b)
{
    const by_bytes *x = a, *y = b;
    const int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static h3_status order_added(h3_tok *t)
{
    by_bytes *all = malloc((t->n_added + 1) * sizeof *all);

    if (!all) return h3_fail(H3_E_NOMEM, "no memory for %zu added tokens", t->n_added);
    for (size_t i = 0; i < t->n_added; i++) {
        const h3_pull_str s = string_of(t, t->added[i]);
        all[i] = (by_bytes){s.p, s.n, t->added[i]};
        t->starts_added[(unsigned char)s.p[0]] = true;
    }
    qsort(all, t->n_added, sizeof *all, compare_bytes);
    for (size_t i = 0; i < t->n_added; i++)
        t->added[i] = all[i].id;
    free(all);
    return H3_OK;
}

/* ---- objects by index -------------------------------------------------------------------------
 */

typedef struct member {
    const char *key;
    const char *at; ///< where the value begins, NULL when the key is absent
} member;

/* Passes over the object at the cursor and notes where the values of the known keys lie. */
static h3_status index_object(h3_pull *j, const char *what, member *m, size_t n)
{
    h3_pull_str key;
    bool more;

    H3_TRY(h3_pull_open(j, '{', what));
    for (;;) {
        H3_TRY(h3_pull_key(j, &key, &more));
        if (!more) return H3_OK;
        for (size_t i = 0; i < n; i++) {
            if (!h3_pull_is(key, m[i].key)) continue;
            if (m[i].at) return h3_fail(H3_E_FORMAT, "key \"%s\" stands twice", m[i].key);
            h3_pull_peek(j);
            m[i].at = j->at;
        }
        H3_TRY(h3_pull_skip(j));
    }
}

/* Puts the cursor on a member. */
static bool go(h3_pull *j, member m)
{
    if (m.at) j->at = m.at;
    return m.at != NULL;
}

/* True when the member is the string `want`, or absent or null where `absent_is_ok`. */
static bool says(h3_pull *j, member m, const char *want, bool absent_is_ok)
{
    h3_pull_str s;

    if (!go(j, m) || h3_pull_peek(j) == 'n') return absent_is_ok;
    return h3_pull_peek(j) == '"' && h3_pull_string(j, &s, "a string") == H3_OK &&
           h3_pull_is(s, want);
}

/* True when the member is the truth value `want`, or absent. */
static bool says_bool(h3_pull *j, member m, bool want)
{
    bool on, ok;

    if (!go(j, m)) return true;
    return h3_pull_bool(j, &on, &ok) == H3_OK && ok && on == want;
}

static h3_status check_normalizer(h3_pull *j, member m)
{
    member f[] = {{"type", NULL}};

    if (go(j, m) && h3_pull_peek(j) == '{') {
        H3_TRY(index_object(j, "normalizer", f, 1));
        if (says(j, f[0], "NFC", false)) return H3_OK;
    }
    return h3_fail(H3_E_UNSUPPORTED, "normalizer: only {\"type\": \"NFC\"} is supported");
}

static h3_status refuse_splitter(void)
{
    return h3_fail(H3_E_UNSUPPORTED,
                   "pre_tokenizer: only Qwen2's (its Split pattern, then ByteLevel) "
                   "is supported");
}

/* {"type": "Split", "pattern": {"Regex": ours}, "behavior": "Isolated", "invert": false} */
static h3_status check_split(h3_pull *j)
{
    member f[] = {{"type", NULL}, {"pattern", NULL}, {"behavior", NULL}, {"invert", NULL}};
    member r[] = {{"Regex", NULL}};

    H3_TRY(index_object(j, "a splitter", f, 4));
    const char *after = j->at;
    if (!says(j, f[0], "Split", false) || !says(j, f[2], "Isolated", false) ||
        !says_bool(j, f[3], false) || !go(j, f[1]) || h3_pull_peek(j) != '{')
        return refuse_splitter();
    H3_TRY(index_object(j, "a pattern", r, 1));
    if (!says(j, r[0], h3_split_pattern, false)) return refuse_splitter();
    j->at = after;
    return H3_OK;
}

static h3_status check_byte_level(h3_pull *j)
{
    member f[] = {{"type", NULL}, {"add_prefix_space", NULL}, {"use_regex", NULL}};

    H3_TRY(index_object(j, "a splitter", f, 3));
    const char *after = j->at;
    // an absent use_regex means true
    if (!says(j, f[0], "ByteLevel", false) || !says_bool(j, f[1], false) || !f[2].at ||
        !says_bool(j, f[2], false))
        return refuse_splitter();
    j->at = after;
    return H3_OK;
}

static h3_status check_pre_tokenizer(h3_pull *j, member m)
{
    member f[] = {{"type", NULL}, {"pretokenizers", NULL}};
    bool more;
    int n = 0;

    if (!go(j, m) || h3_pull_peek(j) != '{') return refuse_splitter();
    H3_TRY(index_object(j, "pre_tokenizer", f, 2));
    if (!says(j, f[0], "Sequence", false) || !go(j, f[1]) || h3_pull_peek(j) != '[')
        return refuse_splitter();
    H3_TRY(h3_pull_open(j, '[', "pretokenizers"));
    for (;; n++) {
        H3_TRY(h3_pull_item(j, &more));
        if (!more) break;
        if (n == 2 || h3_pull_peek(j) != '{') return refuse_splitter();
        H3_TRY(n == 0 ? check_split(j) : check_byte_level(j));
        j->is_first = false;
    }
    return n == 2 ? H3_OK : refuse_splitter();
}

/* ---- files ------------------------------------------------------------------------------------
 */

/* The "model" object at the cursor. */
static h3_status read_model(h3_tok *t, h3_pull *j)
{
    enum { TYPE, VOCAB, MERGES, PREFIX, SUFFIX, DROPOUT, WHOLE, N };
    member f[N] = {{"type", NULL},
                   {"vocab", NULL},
                   {"merges", NULL},
                   {"continuing_subword_prefix", NULL},
                   {"end_of_word_suffix", NULL},
                   {"dropout", NULL},
                   {"ignore_merges", NULL}};
    h3_pull_str s;

    if (h3_pull_peek(j) != '{') return h3_fail(H3_E_FORMAT, "model: is no object");
    H3_TRY(index_object(j, "model", f, N));
    if (!says(j, f[TYPE], "BPE", true)) {
        go(j, f[TYPE]);
        if (h3_pull_peek(j) != '"') return h3_fail(H3_E_FORMAT, "model: \"type\" is no string");
        H3_TRY(h3_pull_string(j, &s, "a type"));
        return h3_fail(H3_E_UNSUPPORTED, "model: type '%s', only BPE is supported", show(s).text);
    }
    for (int i = PREFIX; i <= SUFFIX; i++)
        if (!says(j, f[i], "", true))
            return h3_fail(H3_E_UNSUPPORTED, "model: \"%s\" is not empty", f[i].key);
    if (go(j, f[DROPOUT]) && h3_pull_peek(j) != 'n')
        return h3_fail(H3_E_UNSUPPORTED, "model: \"dropout\" is not null");
    if (!says_bool(j, f[WHOLE], true) && !says_bool(j, f[WHOLE], false))
        return h3_fail(H3_E_FORMAT, "model: \"ignore_merges\" is no truth value");
    t->takes_whole_pieces = f[WHOLE].at && says_bool(j, f[WHOLE], true);
    if (!go(j, f[VOCAB])) return h3_fail(H3_E_MISSING, "model: no vocab");
    H3_TRY(read_vocab(t, j));
    if (!t->n_strings) return h3_fail(H3_E_FORMAT, "vocab: is empty");
    H3_TRY(find_bytes(t));
    if (!go(j, f[MERGES])) return h3_fail(H3_E_MISSING, "model: no merges");
    return read_merges(t, j);
}

static h3_status parse_tokenizer(h3_tok *t, h3_pull *j)
{
    enum { MODEL, ADDED, NORMALIZER, PRE, N };
    member f[N] = {
        {"model", NULL}, {"added_tokens", NULL}, {"normalizer", NULL}, {"pre_tokenizer", NULL}};

    H3_TRY(index_object(j, "an object", f, N));
    H3_TRY(h3_pull_finish(j));
    if (!go(j, f[MODEL])) return h3_fail(H3_E_MISSING, "no \"model\"");
    H3_TRY(read_model(t, j));
    H3_TRY(check_normalizer(j, f[NORMALIZER]));
    H3_TRY(check_pre_tokenizer(j, f[PRE]));
    return go(j, f[ADDED]) ? read_added_list(t, j) : H3_OK;
}

static h3_status parse_vocab(h3_tok *t, h3_pull *j)
{
    H3_TRY(read_vocab(t, j));
    H3_TRY(h3_pull_finish(j));
    if (!t->n_strings) return h3_fail(H3_E_FORMAT, "vocab: is empty");
    return find_bytes(t);
}

static h3_status parse_config(h3_tok *t, h3_pull *j)
{
    // in this order, the reference hands out ids to tokens that have none
    enum { DECODER, FIRST, N_SINGLE = 7, LISTS = FIRST + N_SINGLE, N = LISTS + 2 };
    member f[N] = {{"added_tokens_decoder", NULL},
                   {"bos_token", NULL},
                   {"eos_token", NULL},
                   {"unk_token", NULL},
                   {"sep_token", NULL},
                   {"pad_token", NULL},
                   {"cls_token", NULL},
                   {"mask_token", NULL},
                   {"additional_special_tokens", NULL},
                   {"extra_special_tokens", NULL}};

    H3_TRY(index_object(j, "an object", f, N));
    H3_TRY(h3_pull_finish(j));
    if (go(j, f[DECODER])) H3_TRY(read_added_decoder(t, j));
    for (int i = FIRST; i < LISTS; i++)
        if (go(j, f[i])) H3_TRY(read_special(t, j, f[i].key));
    for (int i = LISTS; i < N; i++)
        if (go(j, f[i])) H3_TRY(read_specials(t, j, f[i].key));
    return H3_OK;
}

static h3_status read_json(h3_tok *t, const char *path, h3_status (*parse)(h3_tok *, h3_pull *))
{
    char *text = NULL;
    size_t n = 0;
    h3_pull j = {0};
    h3_status st = h3_file_read(&text, &n, path, MAX_FILE_BYTES);

    if (st != H3_OK) return st;
    if ((st = h3_pull_init(&j, text, n)) == H3_OK) st = parse(t, &j);
    if (st != H3_OK) h3_fail_in(st, "%s: tokenizer", path);
    h3_pull_free(&j);
    free(text);
    return st;
}

/* One merge a line; "#version: ..." may stand on the first one (a merge may also begin with '#').
 */
static h3_status parse_merge_lines(h3_tok *t, const char *text, size_t n)
{
    h3_bytes joined = {0};
    size_t bad, len;
    h3_status st = H3_OK;

    if (!h3_utf8_is_valid(text, n, &bad))
        return h3_fail(H3_E_FORMAT, "merges: byte %zu is not UTF-8", bad);
    for (size_t at = 0; at < n && st == H3_OK; at += len + 1) {
        const char *end = memchr(text + at, '\n', n - at);
        len = end ? (size_t)(end - text) - at : n - at;
        h3_pull_str line = {text + at, len};
        if (line.n && line.p[line.n - 1] == '\r') line.n--;
        if (line.n == 0 || (at == 0 && line.n >= 9 && memcmp(line.p, "#version:", 9) == 0))
            continue;
        st = add_merge_line(t, &joined, line);
    }
    free(joined.p);
    return st;
}

static h3_status read_merges_txt(h3_tok *t, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    h3_status st = h3_file_read(&text, &n, path, MAX_FILE_BYTES);

    if (st != H3_OK) return st;
    if ((st = parse_merge_lines(t, text, n)) != H3_OK) h3_fail_in(st, "%s: tokenizer", path);
    free(text);
    return st;
}

/* The folder part of a path, "." when there is none; malloc'd. */
static char *folder_of(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');

    *name = slash ? slash + 1 : path;
    if (!slash) return h3_strdupf(".");
    return h3_strdupf("%.*s", slash == path ? 1 : (int)(slash - path), path);
}

static h3_status load_pair(h3_tok *t, const char *vocab, const char *merges)
{
    H3_TRY(read_json(t, vocab, parse_vocab));
    return read_merges_txt(t, merges);
}

/* What lies in `folder`; `file` is the tokenizer.json to take instead, or NULL. */
static h3_status load_folder(h3_tok *t, const char *folder, const char *file)
{
    char *json = h3_path_join(folder, "tokenizer.json");
    char *vocab = h3_path_join(folder, "vocab.json");
    char *merges = h3_path_join(folder, "merges.txt");
    h3_status st;

    if (file || h3_path_exists(json))
        st = read_json(t, file ? file : json, parse_tokenizer);
    else if (h3_path_exists(vocab))
        st = load_pair(t, vocab, merges);
    else
        st = h3_fail(H3_E_MISSING,
                     "%s: no tokenizer (tokenizer.json, or vocab.json and merges.txt)", folder);
    free(json);
    free(vocab);
    free(merges);
    return st;
}

static h3_status load_config(h3_tok *t, const char *folder)
{
    char *config = h3_path_join(folder, "tokenizer_config.json");
    const h3_status st = h3_path_exists(config) ? read_json(t, config, parse_config) : H3_OK;

    free(config);
    return st;
}

h3_status h3_tok_load(h3_tok *t, const char *path)
{
    const bool is_folder = h3_path_is_dir(path);
    const char *name = "";
    char *folder = is_folder ? h3_strdupf("%s", path) : folder_of(path, &name);
    const bool is_pair = strcmp(name, "vocab.json") == 0 || strcmp(name, "merges.txt") == 0;
    // a file under another name need not belong to the tokenizer_config.json beside it
    const bool has_config = is_folder || is_pair || strcmp(name, "tokenizer.json") == 0;
    h3_status st = H3_OK;

    if (is_pair) {
        char *vocab = h3_path_join(folder, "vocab.json");
        char *merges = h3_path_join(folder, "merges.txt");
        st = load_pair(t, vocab, merges);
        free(vocab);
        free(merges);
    } else {
        st = load_folder(t, folder, is_folder ? NULL : path);
    }
    if (st == H3_OK && (st = index_merges(t)) != H3_OK) h3_fail_in(st, "%s: tokenizer", path);
    if (st == H3_OK && has_config) st = load_config(t, folder);
    if (st == H3_OK) st = order_added(t);
    free(folder);
    return st;
}

/* ---- lists ------------------------------------------------------------------------------------
 */

enum { TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5 };

static bool is_added_type(const h3_tok_lists *l, int64_t i)
{
    return l->types && (l->types[i] == TYPE_CONTROL || l->types[i] == TYPE_USER_DEFINED);
}

static h3_status file_list(h3_tok *t, const h3_tok_lists *l)
{
    for (int64_t i = 0; i < l->n_tokens; i++) {
        const h3_pull_str s = {l->tokens[i].s, l->tokens[i].n};
        size_t bad;
        if (l->types && l->types[i] == TYPE_UNUSED) continue;
        H3_TRY(check_id("tokens", s, i, true));
        if (s.n == 0) return h3_fail(H3_E_FORMAT, "tokens: number %lld is empty", (long long)i);
        if (!h3_utf8_is_valid(s.p, s.n, &bad))
            return h3_fail(H3_E_FORMAT, "tokens: number %lld is not UTF-8", (long long)i);
        const int32_t twin = h3_tok_find_n(t, s.p, s.n);
        if (twin >= 0)
            return h3_fail(H3_E_FORMAT, "tokens: '%s' stands twice, with ids %d and %lld",
                           show(s).text, (int)twin, (long long)i);
        H3_TRY(file_token(t, s, (int32_t)i));
    }
    if (!t->n_strings) return h3_fail(H3_E_FORMAT, "tokens: there are none");
    return H3_OK;
}

static h3_status merge_list(h3_tok *t, const h3_tok_lists *l)
{
    h3_bytes joined = {0};
    h3_status st = H3_OK;

    for (int64_t i = 0; i < l->n_merges && st == H3_OK; i++) {
        const h3_pull_str s = {l->merges[i].s, l->merges[i].n};
        size_t bad;
        st = s.n && h3_utf8_is_valid(s.p, s.n, &bad)
                 ? add_merge_line(t, &joined, s)
                 : h3_fail(H3_E_FORMAT, "merges: entry %lld is empty or not UTF-8", (long long)i);
    }
    free(joined.p);
    return st;
}

/* Ordinary tokens are bytes or made by merges; whatever else there is was added. */
static h3_status add_unmade(h3_tok *t)
{
    bool *is_made = calloc(t->n_ids + 1, sizeof *is_made);
    h3_status st = H3_OK;

    if (!is_made) return h3_fail(H3_E_NOMEM, "no memory for %zu tokens", t->n_ids);
    for (int b = 0; b < 256; b++)
        is_made[t->byte_id[b]] = true;
    for (size_t i = 0; i < t->n_merges; i++)
        is_made[t->merge[i].id] = true;
    for (size_t id = 0; id < t->n_ids && st == H3_OK; id++)
        if (t->str[id].n && !is_made[id])
            st = add_added(t, "tokens", string_of(t, (int32_t)id), (int64_t)id);
    free(is_made);
    return st;
}

const char *const h3_tok_dialogue[H3_TOK_DIALOGUE] = {"<d>",
                                                      "</d>",
                                                      "<|cutoff|>",
                                                      "<|lyrics_start|>",
                                                      "<|lyrics_end|>",
                                                      "<|caption_start|>",
                                                      "<|caption_end|>"};

static h3_status add_dialogue(h3_tok *t)
{
    for (int i = 0; i < H3_TOK_DIALOGUE; i++) {
        const char *s = h3_tok_dialogue[i];
        H3_TRY(add_added(t, "dialogue tokens", (h3_pull_str){s, strlen(s)}, -1));
    }
    return H3_OK;
}

static h3_status load_lists(h3_tok *t, const h3_tok_lists *l)
{
    H3_TRY(file_list(t, l));
    H3_TRY(find_bytes(t));
    H3_TRY(merge_list(t, l));
    H3_TRY(index_merges(t));
    if (!l->types) H3_TRY(add_unmade(t));
    for (int64_t i = 0; l->types && i < l->n_tokens; i++)
        if (is_added_type(l, i)) H3_TRY(add_added(t, "tokens", string_of(t, (int32_t)i), i));
    H3_TRY(add_dialogue(t));
    return order_added(t);
}

h3_status h3_tok_load_lists(h3_tok *t, const h3_tok_lists *l)
{
    const h3_status st = load_lists(t, l);

    if (st != H3_OK) h3_fail_in(st, "%s: tokenizer", l->path);
    return st;
}
