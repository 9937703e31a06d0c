/**
 * Qwen2's splitter as a scanner. The pattern is seven alternatives tried in order at each place;
 * they cover every character between them, so pieces follow each other without gaps:
 *
 *   1  (?i:'s|'t|'re|'ve|'m|'ll|'d)          contractions; folding makes U+017F an s
 *   2  [^\r\n\p{L}\p{N}]?\p{L}+              a word with at most one other character before it
 *   3  \p{N}                                 one number character
 *   4  " ?[^\s\p{L}\p{N}]+[\r\n]*"           punctuation, the blank before and line ends after it
 *   5  \s*[\r\n]+                            blanks up to the last line end of their run
 *   6  \s+(?!\S)                             blanks but the one that belongs to the next word
 *   7  \s+                                   that one, when no word takes it
 *
 * A regular-expression library was rejected: PCRE2 10.42 knows Unicode 14 and counts U+180E as a
 * blank, and backtracking over hostile input needs limits; a scanner needs neither.
 */
#include "split.h"

#include <stdbool.h>
#include <stdint.h>

#include "unicode.h"

const char h3_split_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                                " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                                "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct peeked {
    uint32_t cp; // 0 at the end
    size_t len;  // 0 at the end
    h3_unicode_kind kind;
} peeked;

static peeked peek(const char *s, size_t n, size_t at)
{
    peeked p = {0, 0, H3_UC_OTHER};

    if (at < n) {
        p.cp = h3_utf8_get(s + at, &p.len);
        p.kind = h3_unicode_kind_of(p.cp);
    }
    return p;
}

static bool is_line_end(peeked p)
{
    return p.len && (p.cp == '\r' || p.cp == '\n');
}

static bool is_kind(peeked p, h3_unicode_kind kind)
{
    return p.len && p.kind == kind;
}

/* End of the run of `kind` that starts at `at` (at itself when there is none). */
static size_t run_end(const char *s, size_t n, size_t at, h3_unicode_kind kind)
{
    for (peeked p = peek(s, n, at); is_kind(p, kind); p = peek(s, n, at))
        at += p.len;
    return at;
}

/* Length of the contraction at s[0] == '\'', 0 if there is none. */
static size_t contraction(const char *s, size_t n)
{
    const char a = n > 1 ? (char)(s[1] | 0x20) : 0, b = n > 2 ? (char)(s[2] | 0x20) : 0;

    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (n > 2 && (unsigned char)s[1] == 0xc5 && (unsigned char)s[2] == 0xbf) return 3; // U+017F
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
}

/* Alternatives 5 to 7, at a blank. */
static size_t blanks(const char *s, size_t n)
{
    size_t at = 0, last = 0, line_end = 0; // start of the last blank; end of the last line end

    for (peeked p = peek(s, n, 0); is_kind(p, H3_UC_SPACE); p = peek(s, n, at)) {
        last = at;
        at += p.len;
        if (is_line_end(p)) line_end = at;
    }
    if (line_end) return line_end;
    return at == n || last == 0 ? at : last;
}

size_t h3_split_next(const char *s, size_t n)
{
    const peeked p = peek(s, n, 0), q = peek(s, n, p.len);
    size_t at = p.len;

    if (p.cp == '\'' && (at = contraction(s, n)) > 0) return at;
    if (p.kind == H3_UC_LETTER) return run_end(s, n, p.len, H3_UC_LETTER);
    if (p.kind == H3_UC_NUMBER) return p.len;
    if (is_kind(q, H3_UC_LETTER) && !is_line_end(p)) return run_end(s, n, p.len, H3_UC_LETTER);
    if (p.kind == H3_UC_OTHER || (p.cp == ' ' && is_kind(q, H3_UC_OTHER))) {
        at = run_end(s, n, p.len, H3_UC_OTHER);
        while (at < n && (s[at] == '\r' || s[at] == '\n'))
            at++;
        return at;
    }
    return blanks(s, n);
}
