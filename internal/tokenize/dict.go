package tokenize

import "slices"

// member is one entry of a dict: val is JSON text.
type member struct {
	key string
	val []byte
}

// dict is a JSON object under construction. Like a Python dict, it keeps the order in which keys came.
type dict []member

// set adds a member or replaces the value of the one there is.
func (d *dict) set(key string, val []byte) {
	for i := range *d {
		if (*d)[i].key == key {
			(*d)[i].val = val
			return
		}
	}
	*d = append(*d, member{key, val})
}

// setDefault adds a member unless there is one.
func (d *dict) setDefault(key string, val []byte) {
	if d.get(key) == nil {
		*d = append(*d, member{key, val})
	}
}

func (d *dict) get(key string) []byte {
	for i := range *d {
		if (*d)[i].key == key {
			return (*d)[i].val
		}
	}
	return nil
}

func (d *dict) del(key string) {
	*d = slices.DeleteFunc(*d, func(m member) bool { return m.key == key })
}

// update sets the members of an object, in order.
func (d *dict) update(v *value) {
	for i := range v.kids {
		d.set(string(v.kids[i].key), v.kids[i].raw)
	}
}

// append appends the object's text.
func (d dict) append(dst []byte) []byte {
	dst = append(dst, '{')
	for i, m := range d {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendQuoted(dst, []byte(m.key))
		dst = append(dst, ':')
		dst = append(dst, m.val...)
	}
	return append(dst, '}')
}

// size is about how long the text will be.
func (d dict) size() int {
	n := 2
	for _, m := range d {
		n += len(m.key) + len(m.val) + 4
	}
	return n
}

// appendList appends a list of objects.
func appendList(dst []byte, list []dict) []byte {
	dst = append(dst, '[')
	for i := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = list[i].append(dst)
	}
	return append(dst, ']')
}

// listText is the text of a list of objects.
func listText(list []dict) []byte {
	n := 2
	for i := range list {
		n += list[i].size()
	}
	return appendList(make([]byte, 0, n), list)
}
