/**
 * Headers of picture files; see image_head.h.
 *
 * All lengths come from the file and are compared with what is left of it before they are used.
 * EXIF is a small TIFF inside the other formats, so one reader of TIFF tags serves all of them.
 */
#include "image_head.h"

#include <ctype.h>
#include <string.h>

typedef struct span {
    const uint8_t *p;
    size_t n;
} span;

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t le16(const uint8_t *p)
{
    return (uint32_t)p[1] << 8 | p[0];
}

static uint32_t le24(const uint8_t *p)
{
    return (uint32_t)p[2] << 16 | le16(p);
}

static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | le24(p);
}

static bool has_prefix(span s, const char *text, size_t n)
{
    return s.n >= n && memcmp(s.p, text, n) == 0;
}

/* ---- TIFF and EXIF ---- */

/** Value of a SHORT or LONG tag of the first directory; `missing` when it is not there. */
static uint32_t tiff_tag(span s, uint32_t tag, uint32_t missing)
{
    const bool is_le = has_prefix(s, "II*\0", 4);
    uint32_t at, n;

    if (s.n < 10 || (!is_le && !has_prefix(s, "MM\0*", 4))) return missing;
    at = is_le ? le32(s.p + 4) : be32(s.p + 4);
    if (at > s.n - 2) return missing;
    n = is_le ? le16(s.p + at) : be16(s.p + at);
    for (uint32_t i = 0; i < n; i++) {
        const size_t e = (size_t)at + 2 + 12 * (size_t)i;
        if (e + 12 > s.n) break;
        const uint8_t *p = s.p + e;
        const uint32_t type = is_le ? le16(p + 2) : be16(p + 2);
        if ((is_le ? le16(p) : be16(p)) != tag) continue;
        if (type == 3) return is_le ? le16(p + 8) : be16(p + 8);
        if (type == 4) return is_le ? le32(p + 8) : be32(p + 8);
        return missing;
    }
    return missing;
}

/** Orientation of an EXIF block, with or without its "Exif\0\0" in front. */
static int exif_orientation(span s)
{
    uint32_t v;

    if (has_prefix(s, "Exif\0\0", 6)) s = (span){s.p + 6, s.n - 6};
    v = tiff_tag(s, 0x112, 1);
    return v >= 1 && v <= 8 ? (int)v : 1;
}

static void read_tiff(h3_image_head *h, span s)
{
    h->width = tiff_tag(s, 0x100, 0);
    h->height = tiff_tag(s, 0x101, 0);
    h->orientation = exif_orientation(s);
    const uint32_t compression = tiff_tag(s, 0x103, 1);
    h->is_jpeg_inside = compression == 6 || compression == 7;
}

/* ---- JPEG ---- */

static bool is_frame_header(uint8_t m)
{
    return m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC;
}

/** Position of the next marker code at or after `at` inside entropy-coded data; s.n at the end. */
static size_t next_marker(span s, size_t at)
{
    for (; at + 1 < s.n; at++)
        if (s.p[at] == 0xFF && s.p[at + 1] != 0 && s.p[at + 1] != 0xFF &&
            (s.p[at + 1] < 0xD0 || s.p[at + 1] > 0xD7))
            return at + 1;
    return s.n;
}

static void read_jpeg(h3_image_head *h, span s)
{
    bool has_exif = false;

    h->is_complete = false;
    for (size_t at = next_marker(s, 2); at < s.n;) {
        const uint8_t m = s.p[at];
        size_t len;

        if (m == 0xD9) {
            h->is_complete = h->width > 0;
            return;
        }
        if (m == 0x01 || m == 0xD8) { // markers without a length
            at = next_marker(s, at + 1);
            continue;
        }
        if (s.n - at < 3 || (len = be16(s.p + at + 1)) < 2 || len > s.n - at - 1) return;
        const span body = {s.p + at + 3, len - 2};
        if (is_frame_header(m) && body.n >= 5 && !h->width) {
            h->height = be16(body.p + 1);
            h->width = be16(body.p + 3);
        }
        if (m == 0xE1 && !has_exif && has_prefix(body, "Exif\0\0", 6)) {
            h->orientation = exif_orientation(body);
            has_exif = true;
        }
        at = next_marker(s, at + 1 + len); // after a scan header this walks its data
    }
}

/* ---- chunk formats ---- */

static void read_png(h3_image_head *h, span s)
{
    h->is_complete = false;
    for (size_t at = 8; s.n - at >= 12;) {
        const uint32_t len = be32(s.p + at);
        const uint8_t *type = s.p + at + 4;
        if (len > s.n - at - 12) return;
        const span body = {s.p + at + 8, len};
        if (memcmp(type, "IHDR", 4) == 0 && len >= 8) {
            h->width = be32(body.p);
            h->height = be32(body.p + 4);
        } else if (memcmp(type, "eXIf", 4) == 0) {
            h->orientation = exif_orientation(body);
        } else if (memcmp(type, "IEND", 4) == 0) {
            h->is_complete = true;
            return;
        }
        at += 12 + (size_t)len;
    }
}

static void read_webp(h3_image_head *h, span s)
{
    const uint32_t riff = le32(s.p + 4);

    h->is_complete = riff <= s.n - 8;
    for (size_t at = 12; s.n - at >= 8;) {
        const uint32_t len = le32(s.p + at + 4);
        const uint8_t *type = s.p + at;
        const span body = {s.p + at + 8, len < s.n - at - 8 ? len : s.n - at - 8};
        if (memcmp(type, "VP8X", 4) == 0 && body.n >= 10) {
            h->width = (int64_t)le24(body.p + 4) + 1;
            h->height = (int64_t)le24(body.p + 7) + 1;
            h->is_animated = body.p[0] & 2;
        } else if (memcmp(type, "VP8 ", 4) == 0 && body.n >= 10 && !h->width) {
            h->width = le16(body.p + 6) & 0x3FFF;
            h->height = le16(body.p + 8) & 0x3FFF;
        } else if (memcmp(type, "VP8L", 4) == 0 && body.n >= 5 && !h->width) {
            const uint32_t bits = le32(body.p + 1);
            h->width = (bits & 0x3FFF) + 1;
            h->height = (bits >> 14 & 0x3FFF) + 1;
        } else if (memcmp(type, "EXIF", 4) == 0) {
            h->orientation = exif_orientation(body);
        }
        if (len > s.n - at - 8) {
            h->is_complete = false;
            return;
        }
        at += 8 + (size_t)len;
        if (len % 2 && at < s.n) at++;
    }
}

static void read_bmp(h3_image_head *h, span s)
{
    if (s.n < 26) return;
    if (le32(s.p + 14) == 12) { // the oldest header has 16-bit sides
        h->width = le16(s.p + 18);
        h->height = le16(s.p + 20);
        return;
    }
    h->width = le32(s.p + 18);
    h->height = le32(s.p + 22);
    if (h->height > INT32_MAX) h->height = (int64_t)UINT32_MAX + 1 - h->height; // rows from the top
}

/** Next number of a PNM header; comments run from # to the end of the line. */
static int64_t pnm_number(span s, size_t *at)
{
    int64_t v = 0;
    bool is_comment = false, any = false;

    for (; *at < s.n; (*at)++) {
        const uint8_t c = s.p[*at];
        if (is_comment)
            is_comment = c != '\n';
        else if (c == '#')
            is_comment = true;
        else if (isdigit(c))
            any = true, v = v < INT32_MAX ? 10 * v + (c - '0') : v;
        else if (any || !isspace(c))
            break;
    }
    return any ? v : 0;
}

static void read_pnm(h3_image_head *h, span s)
{
    size_t at = 2;

    h->width = pnm_number(s, &at);
    h->height = pnm_number(s, &at);
}

static void read_gif(h3_image_head *h, span s)
{
    if (s.n < 10) return;
    h->width = le16(s.p + 6);
    h->height = le16(s.p + 8);
}

static bool is_heif(span s)
{
    static const char brands[][5] = {"heic", "heix", "heim", "hevc",
                                     "mif1", "msf1", "avif", "avis"};

    if (s.n < 12 || memcmp(s.p + 4, "ftyp", 4) != 0) return false;
    for (size_t i = 0; i < sizeof brands / sizeof *brands; i++)
        if (memcmp(s.p + 8, brands[i], 4) == 0) return true;
    return false;
}

h3_image_head h3_image_head_read(const uint8_t *data, size_t size)
{
    h3_image_head h = {.orientation = 1, .is_complete = true};
    const span s = {data, size};

    if (has_prefix(s, "\xFF\xD8\xFF", 3)) {
        h.format = H3_IMAGE_JPEG;
        read_jpeg(&h, s);
    } else if (has_prefix(s, "\x89PNG\r\n\x1A\n", 8)) {
        h.format = H3_IMAGE_PNG;
        read_png(&h, s);
    } else if (has_prefix(s, "GIF8", 4)) {
        h.format = H3_IMAGE_GIF;
        read_gif(&h, s);
    } else if (has_prefix(s, "RIFF", 4) && size >= 12 && memcmp(data + 8, "WEBP", 4) == 0) {
        h.format = H3_IMAGE_WEBP;
        read_webp(&h, s);
    } else if (has_prefix(s, "BM", 2) && size >= 26) {
        h.format = H3_IMAGE_BMP;
        read_bmp(&h, s);
    } else if (has_prefix(s, "II*\0", 4) || has_prefix(s, "MM\0*", 4)) {
        h.format = H3_IMAGE_TIFF;
        read_tiff(&h, s);
    } else if (size >= 8 && data[0] == 'P' && data[1] >= '1' && data[1] <= '6' &&
               isspace(data[2])) {
        h.format = H3_IMAGE_PNM;
        read_pnm(&h, s);
    } else if (is_heif(s)) {
        h.format = H3_IMAGE_HEIF;
    }
    return h;
}

const char *h3_image_format_name(h3_image_format f)
{
    static const char *const names[] = {"",    "JPEG", "PNG", "GIF", "WebP",
                                        "BMP", "TIFF", "PNM", "HEIF"};
    return names[f];
}
