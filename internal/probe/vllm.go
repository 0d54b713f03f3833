package probe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
)

// vllm reads what vLLM says: /version, the labels of vllm:cache_config_info, and /kv_event_sources.
func (a *api) vllm(ctx context.Context, info *Info) {
	info.Version = a.version(ctx, info)
	a.vllmCache(ctx, info)
	a.vllmEvents(ctx, info)
	info.unknown("default arguments of the chat template", "vLLM does not say")
}

// vllmCache reads vllm:cache_config_info, which every data-parallel rank has a series of. With two ranks of
// 256 blocks each, vLLM 0.32 says 512 in both.
func (a *api) vllmCache(ctx context.Context, info *Info) {
	families, err := a.metrics(ctx)
	if err == nil && family(families, "vllm", "cache_config_info") == nil {
		err = fmt.Errorf("GET /metrics has no vllm:cache_config_info")
	}
	if err != nil {
		info.unknown("block size", err)
		info.unknown("size of the cache", err)
		info.unknown("data-parallel size", err)
		return
	}
	engines := map[string]bool{}
	for _, m := range family(families, "vllm", "cache_config_info").Metric {
		engines[label(m, "engine")] = true
		// Hybrid models resolve another size for attention than was asked for.
		size := max(number(m, "effective_attention_block_size"), 0)
		if size == 0 {
			size = number(m, "block_size")
		}
		if info.BlockSize == 0 {
			info.BlockSize = int(min(size, 1<<30))
		} else if int64(info.BlockSize) != size {
			info.unknown("block size", fmt.Sprintf("ranks differ: %d and %d", info.BlockSize, size))
		}
		if blocks := number(m, "num_gpu_blocks"); info.PoolBlocks == 0 || blocks != 0 && blocks < info.PoolBlocks {
			info.PoolBlocks = blocks
		}
	}
	info.DPSize = len(engines)
	info.PoolBlocks /= int64(max(len(engines), 1)) // each rank's series has the sum of all
	if info.BlockSize == 0 {
		info.unknown("block size", "vllm:cache_config_info does not say")
	}
	if info.PoolBlocks == 0 {
		info.unknown("size of the cache", "vllm:cache_config_info does not say")
	}
}

// vllmEvents reads the list of event sources, which vLLM has since 0.32.
func (a *api) vllmEvents(ctx context.Context, info *Info) {
	var list map[string]*struct {
		Enabled   bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	}
	if err := a.getJSON(ctx, "/kv_event_sources", &list); err != nil {
		if status(err) == 404 {
			info.unknown("event endpoints", "this vLLM does not list them (0.32 and later do); give events=")
		} else {
			info.unknown("event endpoints", err)
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(list)) {
		s, why := list[key], ""
		rank, err := strconv.Atoi(key)
		var live string
		switch {
		case err != nil || rank < 0:
			why = fmt.Sprintf("rank %q is none", key)
		case s == nil || !s.Enabled:
			why = "events are off; start vLLM with --kv-events-config"
		case s.Publisher != "zmq":
			why = fmt.Sprintf("the publisher is %q, not zmq", s.Publisher)
		default:
			if live, err = a.endpoint(s.Endpoint); err != nil {
				why = err.Error()
			}
		}
		if why != "" {
			info.unknown("events of rank "+key, why)
			continue
		}
		src := Source{Rank: rank, Events: Events{Live: live, Topic: s.Topic}}
		if s.Replay == "" {
			info.unknown("replay of rank "+key, "none is configured: what was before the first event stays unknown")
		} else if src.Replay, err = a.endpoint(s.Replay); err != nil {
			info.unknown("replay of rank "+key, err)
		}
		info.Sources = append(info.Sources, src)
	}
	slices.SortFunc(info.Sources, func(x, y Source) int { return x.Rank - y.Rank })
	if len(list) == 0 {
		info.unknown("event endpoints", "GET /kv_event_sources lists none; start vLLM with --kv-events-config")
	}
	info.base()
}

// base takes the endpoints of rank 0 out of the sources, and says so if those of the others do not follow.
func (i *Info) base() {
	if len(i.Sources) == 0 || i.Sources[0].Rank != 0 {
		return
	}
	i.Events = i.Sources[0].Events
	for _, s := range i.Sources[1:] {
		if s.Live != plusPort(i.Events.Live, s.Rank) || s.Replay != plusPort(i.Events.Replay, s.Rank) {
			i.unknown(fmt.Sprintf("events of rank %d", s.Rank), fmt.Sprintf("they are at %s, which does not follow from rank 0 at %s", s.Live, i.Events.Live))
		}
	}
}

// family finds a metric by name, with ':' or, as some exporters write it, '_' after the prefix.
func family(families map[string]*dto.MetricFamily, prefix, name string) *dto.MetricFamily {
	if f := families[prefix+":"+name]; f != nil {
		return f
	}
	return families[prefix+"_"+name]
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// number is a label that is a positive number, 0 if it is none ("None" where a value is not set).
func number(m *dto.Metric, name string) int64 {
	n, err := strconv.ParseInt(label(m, name), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
