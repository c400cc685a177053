/* The formats of datasets.def. */
#ifndef TUNE_FORMATS_H
#define TUNE_FORMATS_H

#include "data/data.h"

#define DATASET(name) extern const DataFormat data_format_##name;
#include "data/datasets.def"
#undef DATASET

#endif
