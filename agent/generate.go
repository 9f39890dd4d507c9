package main

// Needs protoc (Debian's protobuf-compiler, or `python -m grpc_tools.protoc` of the PyPI package grpcio-tools) and, on
// PATH, the plugins protoc-gen-go v1.36 and protoc-gen-connect-go v1.21 (`go install`).
//go:generate protoc -I proto --go_out=. --go_opt=module=aenv.dev/agent --connect-go_out=. --connect-go_opt=module=aenv.dev/agent proto/process.proto proto/filesystem.proto
