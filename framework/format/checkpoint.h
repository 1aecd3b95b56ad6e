#pragma once

// Any checkpoint as uncut tensors: ordinary ones of any mesh, universal folders, weights.
#include "framework/format/checkpoint/merge.h"           // a parameter's shards, merged
#include "framework/format/checkpoint/model.h"           // opens any checkpoint
#include "framework/format/checkpoint/weights_reader.h"  // reads weights as Hugging Face keeps them
