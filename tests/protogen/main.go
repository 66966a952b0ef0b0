// SPDX-License-Identifier: Apache-2.0

// Protogen turns a .proto file into Go, with messages and gRPC stubs, and needs no protoc: it
// compiles the file itself and runs the two plugins of the versions in its go.mod, which also
// makes it a module of its own.
//
//	protogen NAME FILE
//
// compiles FILE under the NAME by which other protos import it, and writes beside FILE.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want a NAME and a FILE, got %q", args)
	}
	files, err := generate(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(filepath.Dir(args[1]), name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// plugins are tools of this module.
func plugins() []string { return []string{"protoc-gen-go", "protoc-gen-go-grpc"} }

// generate is what the plugins make of the file, by base name.
func generate(ctx context.Context, name, file string) (map[string][]byte, error) {
	request, err := compile(ctx, name, file)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, plugin := range plugins() {
		response, err := runPlugin(ctx, plugin, request)
		if err != nil {
			return nil, err
		}
		for _, f := range response.GetFile() {
			files[path.Base(f.GetName())] = []byte(f.GetContent())
		}
	}
	return files, nil
}

// compile checks the file and wraps it, with what it imports, as the plugins expect it.
func compile(ctx context.Context, name, file string) (*pluginpb.CodeGeneratorRequest, error) {
	source := &protocompile.SourceResolver{Accessor: func(asked string) (io.ReadCloser, error) {
		if asked != name {
			return nil, os.ErrNotExist
		}
		return os.Open(file)
	}}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(source),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", file, err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{name}}
	seen := make(map[string]bool)
	for _, f := range compiled {
		request.ProtoFile = withImports(request.ProtoFile, f, seen)
	}
	return request, nil
}

// withImports appends the file after all that it imports.
func withImports(to []*descriptorpb.FileDescriptorProto, file protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return to
	}
	seen[file.Path()] = true
	for i := range file.Imports().Len() {
		to = withImports(to, file.Imports().Get(i).FileDescriptor, seen)
	}
	return append(to, protodesc.ToFileDescriptorProto(file))
}

// runPlugin speaks protoc's protocol with a plugin.
func runPlugin(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run %s: %w", plugin, err)
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out.Bytes(), response); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", plugin, err)
	}
	if said := response.GetError(); said != "" {
		return nil, fmt.Errorf("%s: %s", plugin, said)
	}
	return response, nil
}
