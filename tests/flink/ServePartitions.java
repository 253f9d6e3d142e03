// Serves two partitions of Flink's own classes to a foreign consumer: a sort-merge partition with LZ4, and a pipelined one with a large barrier.
//
// In Flink's package, because a subpartition can be made only there.  Arguments: a folder for files, the number of records, the number of
// bytes of the savepoint's location and of a segment.  Prints the port and the ids, and ends with its standard input.
package org.apache.flink.runtime.io.network.partition;

import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.NettyShuffleEnvironmentOptions.CompressionCodec;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.SavepointType;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.disk.BatchShuffleReadBufferPool;
import org.apache.flink.runtime.io.network.TaskEventDispatcher;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.StopMode;
import org.apache.flink.runtime.io.network.buffer.BufferCompressor;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.io.network.netty.NettyConfig;
import org.apache.flink.runtime.io.network.netty.NettyConnectionManager;
import org.apache.flink.runtime.jobgraph.IntermediateDataSetID;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;

public final class ServePartitions {
    private static int segment;

    public static void main(String[] args) throws Exception {
        segment = Integer.parseInt(args[3]);
        int numRecords = Integer.parseInt(args[1]);
        NetworkBufferPool pool = new NetworkBufferPool(1024, segment);
        ResultPartitionManager manager = new ResultPartitionManager();
        NettyConfig config = new NettyConfig(InetAddress.getLoopbackAddress(), 0, segment, 1, new Configuration());
        NettyConnectionManager connections = new NettyConnectionManager(manager, new TaskEventDispatcher(), config, true);
        System.out.println("PORT " + connections.start());
        ResultPartition sorted = sorted(args[0], pool, manager);
        write(sorted, numRecords);
        ResultPartition pipelined = pipelined(pool, manager);
        byte[] location = new byte[Integer.parseInt(args[2])];
        Arrays.fill(location, (byte) 'p');
        CheckpointOptions options =
                CheckpointOptions.alignedNoTimeout(
                        SavepointType.savepoint(SavepointFormatType.CANONICAL), new CheckpointStorageLocationReference(location));
        pipelined.broadcastEvent(new CheckpointBarrier(7, 1234567890123L, options), false);
        write(pipelined, 3);
        System.out.println("READY");
        while (System.in.read() >= 0) {}
        System.exit(0);
    }

    private static ResultPartition sorted(String folder, NetworkBufferPool pool, ResultPartitionManager manager) throws Exception {
        BatchShuffleReadBufferPool readPool = new BatchShuffleReadBufferPool(64L * segment, segment);
        ExecutorService reading = Executors.newFixedThreadPool(1);
        ResultPartition partition =
                new SortMergeResultPartition(
                        "sorted", 0, id("SORTED", 1), ResultPartitionType.BLOCKING, 1, 128, readPool, reading, manager, folder + "/sorted",
                        new BufferCompressor(segment, CompressionCodec.LZ4), () -> pool.createBufferPool(64, 64));
        partition.setup();
        return partition;
    }

    private static ResultPartition pipelined(NetworkBufferPool pool, ResultPartitionManager manager) throws Exception {
        ResultSubpartition[] subpartitions = new ResultSubpartition[1];
        ResultPartition partition =
                new PipelinedResultPartition(
                        "pipelined", 0, id("PIPELINED", 2), ResultPartitionType.PIPELINED_BOUNDED, subpartitions, 128, manager, null,
                        () -> pool.createBufferPool(2, 10, 1, Integer.MAX_VALUE, 0));
        subpartitions[0] = new PipelinedSubpartition(0, 2, segment, partition);
        partition.setup();
        return partition;
    }

    private static void write(ResultPartition partition, int numRecords) throws Exception {
        for (int number = 0; number < numRecords; number++) {
            String text = String.format("record %08d %s\n", number, "abcdefgh".repeat(10));
            partition.emitRecord(ByteBuffer.wrap(text.getBytes(StandardCharsets.US_ASCII)), 0);
        }
        partition.notifyEndOfData(StopMode.DRAIN);
        if (partition instanceof PipelinedResultPartition) {
            partition.flushAll();
        }
        partition.finish();
    }

    private static ResultPartitionID id(String name, long number) {
        IntermediateResultPartitionID partition = new IntermediateResultPartitionID(new IntermediateDataSetID(), 0);
        ExecutionAttemptID producer = ExecutionAttemptID.randomId();
        ByteBuf bytes = Unpooled.buffer();
        partition.writeTo(bytes);
        producer.writeTo(bytes);
        StringBuilder hex = new StringBuilder();
        while (bytes.isReadable()) {
            hex.append(String.format("%02x", bytes.readByte()));
        }
        System.out.println(name + " " + hex);
        return new ResultPartitionID(partition, producer);
    }
}
