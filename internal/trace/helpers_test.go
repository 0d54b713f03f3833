package trace_test

import (
	"math"
	"strconv"
)

func itoa(v int64) string { return strconv.FormatInt(v, 10) }

func nan() float64 { return math.NaN() }
