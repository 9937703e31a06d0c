/**
 * Pictures that come in: formats, orientation, damage; and the sizes and rows that the vision tower
 * gets of them.
 */
#include <libavcodec/avcodec.h>
#include <libavutil/crc.h>
#include <math.h>
#include <stdio.h>

#include "frame_files.h"
#include "image.h"
#include "image_head.h"
#include "media_files.h"
#include "probe.h"
#include "resize.h"
#include "vision_rows.h"

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/** A big-endian EXIF block that holds one tag. */
static void make_exif(uint8_t tiff[26], int orientation)
{
    static const uint8_t head[26] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1};
    memcpy(tiff, head, 26);
    put16(tiff + 18, (unsigned)orientation);
}

/** JPEG bytes of a picture, by libav. */
static uint8_t *make_jpeg(const uint8_t *rgb, int w, int h, size_t *size)
{
    AVCodecContext *c = avcodec_alloc_context3(avcodec_find_encoder(AV_CODEC_ID_MJPEG));
    AVFrame *f = av_frame_alloc();
    AVPacket *p = av_packet_alloc();
    uint8_t *out;

    c->width = f->width = w;
    c->height = f->height = h;
    f->format = c->pix_fmt = AV_PIX_FMT_YUVJ444P;
    c->time_base = (AVRational){1, 1};
    c->flags |= AV_CODEC_FLAG_QSCALE;
    c->global_quality = FF_QP2LAMBDA;
    f->quality = FF_QP2LAMBDA;
    assert_int_equal(avcodec_open2(c, NULL, NULL), 0);
    assert_int_equal(av_frame_get_buffer(f, 0), 0);
    for (int k = 0; k < 3; k++) // gray from the green channel is enough
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                f->data[k][y * f->linesize[k] + x] = k ? 128 : rgb[(y * w + x) * 3 + 1];
    assert_int_equal(avcodec_send_frame(c, f), 0);
    assert_int_equal(avcodec_receive_packet(c, p), 0);
    out = malloc((size_t)p->size);
    memcpy(out, p->data, (size_t)p->size);
    *size = (size_t)p->size;
    av_packet_free(&p);
    av_frame_free(&f);
    avcodec_free_context(&c);
    return out;
}

/** `upright` as it is stored when a viewer has to apply `o`. */
static void store_turned(uint8_t *out, const uint8_t *upright, int w, int h, int o)
{
    const bool is_swapped = o >= 5;
    const int sw = is_swapped ? h : w, sh = is_swapped ? w : h;

    for (int y = 0; y < sh; y++)
        for (int x = 0; x < sw; x++) {
            int ux = is_swapped ? y : x,
                uy = is_swapped ? x : y; // transpose, then by the definition
            if (o == 2 || o == 3 || o == 6 || o == 7) ux = w - 1 - ux;
            if (o == 3 || o == 4 || o == 7 || o == 8) uy = h - 1 - uy;
            memcpy(out + (y * sw + x) * 3, upright + (uy * w + ux) * 3, 3);
        }
}

/** Inserts `chunk` of a PNG after its header (33 bytes in). */
static uint8_t *png_with_chunk(const uint8_t *png, size_t n, const char type[4],
                               const uint8_t *body, size_t len, size_t *out_n)
{
    uint8_t *out = malloc(n + len + 12), *p = out + 33;
    uint32_t crc;

    memcpy(out, png, 33);
    memset(p, 0, 4);
    p[3] = (uint8_t)len;
    memcpy(p + 4, type, 4);
    memcpy(p + 8, body, len);
    crc = ~av_crc(av_crc_get_table(AV_CRC_32_IEEE_LE), ~0u, p + 4, len + 4);
    for (size_t i = 0; i < 4; i++)
        p[8 + len + i] = (uint8_t)(crc >> (24 - 8 * i));
    memcpy(p + 12 + len, png + 33, n - 33);
    *out_n = n + len + 12;
    return out;
}

static void test_exif(void **state)
{
    enum { W = 24, H = 16 };
    uint8_t upright[W * H * 3], stored[W * H * 3], tiff[26];
    (void)state;

    for (int i = 0; i < W * H; i++) // a ramp: no orientation looks like another
        memset(upright + 3 * i, 20 + i / W * 9 + i % W * 3, 3);
    for (int o = 1; o <= 8; o++) {
        const int w = o >= 5 ? H : W, h = o >= 5 ? W : H;
        h3_image img;
        h3_media_info info;
        size_t n, n2;

        store_turned(stored, upright, W, H, o);
        make_exif(tiff, o);
        assert_ok(h3_frame_save(at("o.png"), stored, w, h, H3_FRAMES_PNG));
        uint8_t *png = read_file(at("o.png"), &n),
                *with = png_with_chunk(png, n, "eXIf", tiff, 26, &n2);
        assert_ok(h3_image_load(&img, h3_media_bytes("o.png", with, n2)));
        assert_int_equal(img.width, W);
        assert_int_equal(img.height, H);
        assert_memory_equal(img.rgb, upright, sizeof upright);
        h3_image_free(&img);
        assert_ok(h3_media_probe(&info, h3_media_bytes("o.png", with, n2)));
        assert_true(info.kind == H3_MEDIA_IMAGE && info.width == W && info.height == H);
        free(png);
        free(with);

        uint8_t *jpeg = make_jpeg(stored, w, h, &n), *exif = malloc(n + 36);
        memcpy(exif, jpeg, 2);
        memcpy(exif + 2,
               "\xFF\xE1\0\x22"
               "Exif\0\0",
               10);
        memcpy(exif + 12, tiff, 26);
        memcpy(exif + 38, jpeg + 2, n - 2);
        assert_ok(h3_image_load(&img, h3_media_bytes("o.jpg", exif, n + 36)));
        assert_true(img.width == W && img.height == H);
        for (size_t i = 0; i < sizeof upright; i++)
            assert_true(abs(img.rgb[i] - upright[i]) <= 3);
        h3_image_free(&img);
        free(jpeg);
        free(exif);
    }
}

static void test_simple_formats(void **state)
{
    static const uint8_t pgm16[] = "P5\n# c\n2 1\n65535\n\x80\xFF\x01\x02";
    static const uint8_t pbm[] = "P4 3 1\n\xA0", ppm[] = "P6 1 1 255\n\x01\x02\x03";
    static const uint8_t bmp[58] = {'B', 'M', 58, 0,  0, 0, 0,  0, 0,         0,  54,
                                    0,   0,   0,  40, 0, 0, 0,  1, 0,         0,  0,
                                    1,   0,   0,  0,  1, 0, 24, 0, [54] = 30, 20, 10};
    h3_image img;
    (void)state;

    assert_ok(h3_image_load(&img, h3_media_bytes("x.pgm", pgm16, sizeof pgm16 - 1)));
    assert_true(img.width == 2 && img.rgb[0] == 0x80 && img.rgb[3] == 0x01); // 16 bits: the upper 8
    h3_image_free(&img);
    assert_ok(h3_image_load(&img, h3_media_bytes("x.pbm", pbm, sizeof pbm - 1)));
    assert_true(img.rgb[0] == 0 && img.rgb[3] == 255 && img.rgb[6] == 0);
    h3_image_free(&img);
    assert_ok(h3_image_load(&img, h3_media_bytes("x.ppm", ppm, sizeof ppm - 1)));
    assert_true(img.rgb[0] == 1 && img.rgb[1] == 2 && img.rgb[2] == 3);
    h3_image_free(&img);
    assert_ok(h3_image_load(&img, h3_media_bytes("x.bmp", bmp, sizeof bmp)));
    assert_true(img.rgb[0] == 10 && img.rgb[1] == 20 && img.rgb[2] == 30);
    h3_image_free(&img);
}

/** Alpha is dropped, not blended: a see-through red stays red. */
static void test_alpha_is_dropped(void **state)
{
    h3_image img;
    (void)state;

    if (!has_ffmpeg()) skip();
    assert_true(ffmpeg(
        "-f lavfi -i color=red:s=8x8 -vf format=rgba,colorchannelmixer=aa=0.2 -frames:v 1 a.png"));
    assert_ok(h3_image_load(&img, h3_media_file(at("a.png"))));
    assert_true(img.rgb[0] >= 253 && img.rgb[1] <= 1 && img.rgb[2] <= 1);
    h3_image_free(&img);
}

static void test_bad_pictures(void **state)
{
    static const uint8_t bomb[] = "\x89PNG\r\n\x1A\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\x08\x02\0\0\0CRC!";
    static const char text[] = "this is no picture, whatever its name says";
    uint8_t *rgb = noise(40 * 30 * 3, 3), *jpeg, *png, *copy;
    size_t n_jpeg, n_png;
    h3_media_info info;
    h3_image img;
    (void)state;

    write_file(at("text.png"), text, sizeof text);
    assert_fails(H3_E_FORMAT, "not a picture", h3_image_load(&img, h3_media_file(at("text.png"))));
    assert_fails(H3_E_FORMAT, "text.png", h3_media_probe(&info, h3_media_file(at("text.png"))));
    write_text(at("empty.png"), "");
    assert_fails(H3_E_FORMAT, "empty", h3_image_load(&img, h3_media_file(at("empty.png"))));
    assert_fails(H3_E_FORMAT, "empty", h3_media_probe(&info, h3_media_file(at("empty.png"))));
    assert_fails(H3_E_MISSING, "none.png", h3_image_load(&img, h3_media_file(at("none.png"))));
    assert_fails(H3_E_FORMAT, "65536x65536",
                 h3_image_load(&img, h3_media_bytes("b", bomb, sizeof bomb)));
    assert_fails(H3_E_FORMAT, "65536x65536",
                 h3_media_probe(&info, h3_media_bytes("b", bomb, sizeof bomb)));
    assert_fails(H3_E_UNSUPPORTED, "HEIC",
                 h3_image_load(&img, h3_media_bytes("h",
                                                    "\0\0\0\x18"
                                                    "ftypheic\0\0\0\0",
                                                    16)));

    assert_ok(h3_frame_save(at("cut.png"), rgb, 40, 30, H3_FRAMES_PNG));
    png = read_file(at("cut.png"), &n_png);
    jpeg = make_jpeg(rgb, 40, 30, &n_jpeg);
    for (size_t i = 1; i < 16; i++) { // cut off anywhere
        assert_int_not_equal(h3_image_load(&img, h3_media_bytes("cut", png, n_png * i / 16)),
                             H3_OK);
        assert_int_not_equal(h3_image_load(&img, h3_media_bytes("cut", jpeg, n_jpeg * i / 16)),
                             H3_OK);
        assert_null(img.rgb);
    }
    copy = malloc(n_jpeg > n_png ? n_jpeg : n_png);
    for (unsigned i = 0; i < 600; i++) { // damaged: any outcome but a crash
        const uint8_t *from = i % 2 ? png : jpeg;
        const size_t n = i % 2 ? n_png : n_jpeg;
        memcpy(copy, from, n);
        for (unsigned k = 0; k < 3; k++)
            copy[(i * 2654435761u + k * 40503u) % n] ^= (uint8_t)(1u << (i + k) % 8);
        if (h3_image_load(&img, h3_media_bytes("damaged", copy, n)) == H3_OK) h3_image_free(&img);
    }
    free(copy);
    free(png);
    free(jpeg);
    free(rgb);
}

/* ---- sizes and rows ---- */

static void test_processor_file(void **state)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "{\"patch_size\": 0}",
                                      "{\"merge_size\": 1e9}",
                                      "{\"image_std\": [0, 1, 1]}",
                                      "{\"image_mean\": [0.5]}",
                                      "{\"size\": {\"shortest_edge\": -4}}",
                                      "{\"size\": {\"shortest_edge\": 10, \"longest_edge\": 5}}",
                                      "{\"patch_size\": \"16\"}"};
    h3_processor p = h3_processor_image_default();
    (void)state;

    write_text(
        at("p.json"),
        "{\"size\": {\"shortest_edge\": 4096, \"longest_edge\": 16384}, \"image_std\": [1, 2, 3]}");
    assert_ok(h3_processor_load(&p, at("p.json")));
    assert_true(p.patch == 16 && p.min_pixels == 4096 && p.max_pixels == 16384 && p.std[2] == 3.0f);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(at("p.json"), bad[i]);
        assert_fails(H3_E_FORMAT,
                     i == 0   ? "p.json is empty"
                     : i == 1 ? "p.json: a JSON list"
                              : "p.json",
                     h3_processor_load(&p, at("p.json")));
    }
    assert_fails(H3_E_MISSING, "q.json", h3_processor_load(&p, at("q.json")));
    assert_int_equal(p.max_pixels, 16384); // untouched by failures
}

static void test_resize_extremes(void **state)
{
    uint8_t one[3] = {9, 99, 199}, out[64 * 32 * 3], *thin = noise(3 * 5000, 5), *big;
    (void)state;

    assert_ok(h3_resize(out, 64, 32, one, 1, 1, H3_LANCZOS));
    for (int i = 0; i < 64 * 32; i++)
        assert_memory_equal(out + 3 * i, one, 3);
    assert_ok(h3_resize(out, 1, 1, thin, 5000, 1, H3_BICUBIC));
    assert_ok(h3_resize(out, 1, 1, thin, 1, 5000, H3_LANCZOS));
    // covering 32x64 with a 1:5000 strip: the enlarged picture (160000 rows) never exists
    assert_ok(h3_resize_crop(out, 64, 32, 160000, 32, 79968, 0, thin, 5000, 1));
    assert_fails(H3_E_ARG, "crop", h3_resize_crop(out, 64, 32, 64, 32, 1, 0, thin, 5000, 1));
    assert_fails(H3_E_ARG, "0x", h3_resize(out, 4, 4, thin, 4, 0, H3_LANCZOS));

    big = malloc(120 * 90 * 3); // a crop is what the whole would have been
    uint8_t *src = noise(50 * 41 * 3, 11), part[40 * 30 * 3];
    assert_ok(h3_resize(big, 120, 90, src, 50, 41, H3_LANCZOS));
    assert_ok(h3_resize_crop(part, 40, 30, 120, 90, 33, 17, src, 50, 41));
    for (int y = 0; y < 40; y++)
        assert_memory_equal(part + y * 30 * 3, big + ((y + 33) * 90 + 17) * 3, 30 * 3);
    free(src);
    free(big);
    free(thin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exif),
        cmocka_unit_test(test_simple_formats),
        cmocka_unit_test(test_alpha_is_dropped),
        cmocka_unit_test(test_bad_pictures),
        cmocka_unit_test(test_processor_file),
        cmocka_unit_test(test_resize_extremes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
