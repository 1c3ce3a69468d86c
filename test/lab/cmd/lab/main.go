package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-scheduler/lockstep/test/lab"
)

func main() {
	paths, err := lab.Binaries(context.Background(), os.Stderr)
	fmt.Println(paths, err)
}
