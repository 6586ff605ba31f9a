package pgonce;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** Computes which database of many holds a routing value, such as a tenant's name. */
public final class Shard {
    private Shard() {}

    /** Like once.shard_of: the first 6 bytes of the text's SHA-256, modulo shards (a number that must never change). */
    public static int of(String routing, int shards) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(routing.getBytes(StandardCharsets.UTF_8));
            return (int) ((ByteBuffer.wrap(digest).getLong() >>> 16) % shards);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every JDK has it
        }
    }
}
