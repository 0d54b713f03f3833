package record

import (
	"strconv"
	"unicode/utf8"

	"github.com/kvroute/kvroute/internal/block"
)

const hexDigits = "0123456789abcdef"

// appendHex appends 16 lower-case digits.
func appendHex(dst []byte, x uint64) []byte {
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, hexDigits[x>>shift&15])
	}
	return dst
}

func appendHashes(dst []byte, hashes []block.Hash) []byte {
	for _, h := range hashes {
		dst = appendHex(dst, uint64(h))
	}
	return dst
}

// parseHex appends the 64-bit numbers that digits stand for, 16 each.
func parseHex[T ~uint64](dst []T, digits string) ([]T, bool) {
	if len(digits)%16 != 0 {
		return dst, false
	}
	for ; digits != ""; digits = digits[16:] {
		var x uint64
		for i := range 16 {
			c := digits[i]
			switch {
			case c >= '0' && c <= '9':
				c -= '0'
			case c >= 'a' && c <= 'f':
				c -= 'a' - 10
			default:
				return dst, false
			}
			x = x<<4 | uint64(c)
		}
		dst = append(dst, T(x))
	}
	return dst, true
}

// appendList appends a JSON list of numbers.
func appendList[T uint32 | int64](dst []byte, list []T) []byte {
	dst = append(dst, '[')
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(v), 10)
	}
	return append(dst, ']')
}

// appendNumber appends a block's number, -1 for none.
func appendNumber(dst []byte, n uint32) []byte {
	if n == noBlock {
		return append(dst, "-1"...)
	}
	return strconv.AppendUint(dst, uint64(n), 10)
}

func intField(dst []byte, name string, v int64) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	return strconv.AppendInt(append(dst, '"', ':'), v, 10)
}

func textField(dst []byte, name, v string) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	return appendText(append(dst, '"', ':'), v)
}

// appendText appends a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20 || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
