package cli

import (
	"errors"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/tinymodel"
)

func (a *app) newModel() *cobra.Command {
	return group("model", "Write out the tiny model that is part of the program", "",
		`  kvroute model write /tmp/tiny`,
		a.newModelWrite())
}

func (a *app) newModelWrite() *cobra.Command {
	return &cobra.Command{
		Use:   "write DIR",
		Short: "Write the tiny model's directory: tokenizer, chat template, configuration",
		Long: `Writes tokenizer.json, tokenizer_config.json, chat_template.jinja and
config.json of the tiny model that kvroute engine speaks without --model-path:
a byte-level BPE of 4,096 tokens and a ChatML template with tools. It is what
serve needs as --router-tokenizer-path in front of such engines. Files that
hold something else are not overwritten.`,
		Example: `  kvroute model write /tmp/tiny`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usage("no directory", "kvroute model write", "where to is not said", "kvroute model write DIR")
			case len(args) > 1:
				return usage("unexpected argument \""+printable(args[1])+"\"", "kvroute model write", "want one directory", "")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			err := tinymodel.WriteTo(args[0])
			switch {
			case errors.Is(err, fs.ErrExist):
				f := usage("will not overwrite", args[0], err.Error(), "name another directory")
				f.err = err
				return f
			case err != nil:
				return failed("cannot write the model", args[0], err)
			}
			return a.emit(func(w io.Writer) error {
				_, err := io.WriteString(w, args[0]+"\n")
				return err
			})
		},
	}
}
