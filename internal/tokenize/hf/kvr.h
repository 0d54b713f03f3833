// The C interface of native/ (see native/src/lib.rs for what each call promises).
#ifndef KVR_H
#define KVR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kvr_model kvr_model;
typedef struct kvr_template kvr_template;

// Bytes owned by the archive; give them back with kvr_bytes_free. Unset: ptr is null.
typedef struct {
  uint8_t *ptr;
  size_t len;
} kvr_bytes;

typedef struct {
  int32_t year, month, day, hour, minute, second, micro, weekday, yearday;
} kvr_time;

void kvr_init(uint32_t threads);
void kvr_bytes_free(kvr_bytes b);

kvr_model *kvr_model_open(const uint8_t *json, size_t len, kvr_bytes *info, kvr_bytes *err);
void kvr_model_free(kvr_model *m);
int64_t kvr_encode(const kvr_model *m, bool reference, const uint8_t *text, size_t len, bool add_special,
                   uint32_t *out, size_t cap, kvr_bytes *more, kvr_bytes *err);
bool kvr_decode(const kvr_model *m, const uint32_t *ids, size_t n, kvr_bytes *text, kvr_bytes *err);

kvr_template *kvr_template_compile(const uint8_t *source, size_t len, kvr_bytes *info, kvr_bytes *err);
void kvr_template_free(kvr_template *t);
bool kvr_template_render(const kvr_template *t, const uint8_t *vars, size_t len, kvr_time now, kvr_bytes *out,
                         kvr_bytes *err);

size_t kvr_float(double v, uint8_t *out);

#endif
