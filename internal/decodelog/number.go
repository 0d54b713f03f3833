package decodelog

import "math"

var pow10 = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// number reads a number that is not negative from the start of b, and how many bytes it takes; 0: there is none.
// Points and commas between digits are told apart as told at separators; foreign says that the point was not the
// decimal sign.
func number(b []byte) (v float64, n int, foreign bool) {
	var m uint64
	i := 0
	for i < len(b) && b[i]-'0' < 10 {
		m = m*10 + uint64(b[i]-'0')
		i++
	}
	if i == 0 {
		return 0, 0, false
	}
	if i > 15 {
		return odd(b)
	}
	if i == len(b) || b[i] != '.' {
		if i+1 < len(b) && (b[i] == ',' && b[i+1]-'0' < 10 || b[i]|0x20 == 'e') {
			return odd(b)
		}
		return float64(m), i, false
	}
	whole := i
	i++
	for i < len(b) && b[i]-'0' < 10 {
		m = m*10 + uint64(b[i]-'0')
		i++
	}
	frac := i - whole - 1
	switch {
	case frac == 0: // a full stop
		return float64(m), whole, false
	case i-1 > 15 || i+1 < len(b) && ((b[i] == ',' || b[i] == '.') && b[i+1]-'0' < 10 || b[i]|0x20 == 'e'):
		return odd(b)
	}
	return float64(m) / pow10[frac], i, false
}

// odd reads numbers that are not plain: with separators of thousands, decimal commas, exponents, or many digits.
func odd(b []byte) (v float64, n int, foreign bool) {
	for n < len(b) && (b[n]-'0' < 10 || (b[n] == ',' || b[n] == '.') && n > 0 && n+1 < len(b) && b[n+1]-'0' < 10) {
		n++
	}
	decimal := separators(b[:n])
	foreign = decimal >= 0 && b[decimal] == ','
	digits := 0
	scale := 0
	for i, c := range b[:n] {
		if c-'0' >= 10 {
			continue
		}
		v = float64(v*10) + float64(c-'0')
		digits++
		if decimal >= 0 && i > decimal {
			scale++
		}
	}
	if digits > 300 {
		return 0, 0, false
	}
	v /= math.Pow(10, float64(scale))
	exp, k := exponent(b[n:])
	if k > 0 {
		v *= math.Pow(10, float64(exp))
		n += k
	}
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, 0, false
	}
	return v, n, foreign
}

// exponent reads "e+03".
func exponent(b []byte) (exp, n int) {
	if len(b) < 2 || b[0]|0x20 != 'e' {
		return 0, 0
	}
	i, sign := 1, 1
	if b[i] == '+' || b[i] == '-' {
		if b[i] == '-' {
			sign = -1
		}
		i++
	}
	start := i
	for i < len(b) && b[i]-'0' < 10 && i-start < 4 {
		exp = exp*10 + int(b[i]-'0')
		i++
	}
	if i == start {
		return 0, 0
	}
	return sign * exp, i
}

// separators returns where the decimal sign of a number is; -1: it has none. With both signs it is the last one if
// it occurs once. A lone comma is one unless exactly three digits follow: engines print one or two decimals, and
// thousands in groups of three. A lone point always is one; several of one sign are thousands.
func separators(b []byte) int {
	points, commas, last := 0, 0, -1
	for i, c := range b {
		switch c {
		case '.':
			points++
			last = i
		case ',':
			commas++
			last = i
		}
	}
	switch {
	case last < 0:
		return -1
	case points > 0 && commas > 0:
		if b[last] == '.' && points == 1 || b[last] == ',' && commas == 1 {
			return last
		}
		return -1
	case points == 1:
		return last
	case commas == 1 && len(b)-last-1 != 3:
		return last
	}
	return -1
}

// integer reads digits only, for counters and ranks.
func integer(b []byte) (v int64, n int) {
	for n < len(b) && b[n]-'0' < 10 {
		if n >= 18 {
			return 0, 0
		}
		v = v*10 + int64(b[n]-'0')
		n++
	}
	return v, n
}
