/* A custom operator for onnxruntime, demo::Affine: y = 2 x + 1 of float tensors.

   Only what it needs of onnxruntime's C API is declared here: a table of functions, of which each has kept its place
   since version 1, and the operator's callbacks in the order in which the table for operators has them. */

#include <stddef.h>
#include <stdint.h>

typedef void *(*Get)(uint32_t version);
typedef struct { Get get_api; const char *(*version)(void); } Base;
typedef struct Operator {
  uint32_t version;
  void *(*create)(const struct Operator *, void **api, const void *info);
  const char *(*name)(const struct Operator *);
  const char *(*provider)(const struct Operator *);
  int (*input_type)(const struct Operator *, size_t);
  size_t (*inputs)(const struct Operator *);
  int (*output_type)(const struct Operator *, size_t);
  size_t (*outputs)(const struct Operator *);
  void (*compute)(void *kernel, void *context);
  void (*destroy)(void *kernel);
  int (*input_kind)(const struct Operator *, size_t);
  int (*output_kind)(const struct Operator *, size_t);
  void *later[32];
} Operator;

enum { CREATE_DOMAIN = 26, ADD_OPERATOR = 27, ADD_DOMAIN = 28, DATA = 51, RANK = 61, EXTENTS = 62, ELEMENTS = 64,
       TYPE = 65, INPUT = 90, OUTPUT = 91, RELEASE_TYPE = 99 };
enum { FLOAT = 1, MOST = 8 };

static void *create(const Operator *op, void **api, const void *info) { (void)op; (void)info; return api; }
static const char *name(const Operator *op) { (void)op; return "Affine"; }
static const char *provider(const Operator *op) { (void)op; return 0; }
static int type(const Operator *op, size_t at) { (void)op; (void)at; return FLOAT; }
static int required(const Operator *op, size_t at) { (void)op; (void)at; return 0; }
static size_t one(const Operator *op) { (void)op; return 1; }
static void destroy(void *kernel) { (void)kernel; }

static void compute(void *kernel, void *context) {
  void **api = kernel, *x, *y, *kind;
  float *from, *to;
  int64_t extents[MOST];
  size_t rank, count;
  ((void *(*)(void *, size_t, void **))api[INPUT])(context, 0, &x);
  ((void *(*)(void *, void **))api[TYPE])(x, &kind);
  ((void *(*)(void *, size_t *))api[RANK])(kind, &rank);
  if (rank > MOST) return;
  ((void *(*)(void *, int64_t *, size_t))api[EXTENTS])(kind, extents, rank);
  ((void *(*)(void *, size_t *))api[ELEMENTS])(kind, &count);
  ((void (*)(void *))api[RELEASE_TYPE])(kind);
  ((void *(*)(void *, size_t, const int64_t *, size_t, void **))api[OUTPUT])(context, 0, extents, rank, &y);
  ((void *(*)(void *, void **))api[DATA])(x, (void **)&from);
  ((void *(*)(void *, void **))api[DATA])(y, (void **)&to);
  for (size_t at = 0; at < count; at++) to[at] = 2 * from[at] + 1;
}

static Operator affine = {8, create, name, provider, type, one, type, one, compute, destroy, required, required, {0}};

void *RegisterCustomOps(void *options, const Base *base) {
  static void *domain;
  void **api = base->get_api(1), *failed = 0;
  if (!domain) {
    failed = ((void *(*)(const char *, void **))api[CREATE_DOMAIN])("demo", &domain);
    if (!failed) failed = ((void *(*)(void *, const Operator *))api[ADD_OPERATOR])(domain, &affine);
  }
  return failed ? failed : ((void *(*)(void *, void *))api[ADD_DOMAIN])(options, domain);
}
