module aenv/bench/upstream

go 1.22
